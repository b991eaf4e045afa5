"""The chat template of a model, read from its folder."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mlxd.memory.files import BadFile, read_bounded
from mlxd.memory.model_config import MAX_CONFIG_BYTES, read_object

MAX_TEMPLATE_BYTES = 4_000_000
TEMPLATE_FILE = "chat_template.jinja"
TEMPLATE_CONFIGS = ("chat_template.json", "tokenizer_config.json")


def read_template(folder: Path) -> str:
    """The text of the chat template that holds, "" for none. What cannot be read is not there."""
    return next(_templates(folder), "")


def _templates(folder: Path) -> Iterator[str]:
    with contextlib.suppress(BadFile):
        yield read_bounded(folder / TEMPLATE_FILE, MAX_TEMPLATE_BYTES).decode("utf-8", "replace")
    for name in TEMPLATE_CONFIGS:
        try:
            config: Mapping[str, Any] = read_object(folder / name, MAX_CONFIG_BYTES)
        except BadFile:
            continue
        template = config.get("chat_template")
        if isinstance(template, str):
            yield template
        elif isinstance(template, list):
            yield from _named_templates(template)


def _named_templates(templates: list[Any]) -> Iterator[str]:
    named = {str(each.get("name")): each.get("template") for each in templates if isinstance(each, dict)}
    for name in ("default", "tool_use"):
        if isinstance(template := named.get(name), str):
            yield template
