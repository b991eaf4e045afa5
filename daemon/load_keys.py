"""A key for each model that changes when the model, if it is loaded, would have to be loaded again."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from mlxd.daemon.config_schema import OVERRIDE_RULES
from mlxd.daemon.model_files import Stamp, folder_stamp, loaded_part
from mlxd.daemon.settings import EngineSettings, Settings
from mlxd.registry.spec import ModelSpec

LOADED_WITH = ("isolation", "context_length", "prefix_cache", "prefix_cache_disk", "draft_tokens")
"""Keys of [engine] that a loaded engine cannot change; a draft counts by its files."""


def with_load_keys(specs: Iterable[ModelSpec], settings: Settings) -> tuple[ModelSpec, ...]:
    """The specs with their load keys. Reads the names, sizes and times of their files, not the files."""
    stamps: dict[Path, object] = {}
    return tuple(replace(spec, load_key=_load_key(spec, settings.engine_for(spec.name), stamps)) for spec in specs)


def _load_key(spec: ModelSpec, engine: EngineSettings, stamps: dict[Path, object]) -> str:
    folders = [_folder_facts(folder, stamps) for folder in (spec.path, spec.adapter, spec.draft)]
    facts = [folders, [OVERRIDE_RULES[key].write(_value(engine, spec, key)) for key in LOADED_WITH]]
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()


def _value(engine: EngineSettings, spec: ModelSpec, key: str) -> object:
    # without a draft nobody reads how many tokens it proposes
    if key == "draft_tokens" and spec.draft is None:
        return 0
    return getattr(engine, key)


def _folder_facts(folder: Path | None, stamps: dict[Path, object]) -> object:
    if folder is None:
        return None
    if folder not in stamps:
        stamps[folder] = [os.path.realpath(folder), _stamp(folder)]
    return stamps[folder]


def _stamp(folder: Path) -> Stamp | str:
    try:
        return loaded_part(folder_stamp(folder))
    except OSError as error:
        return type(error).__name__
