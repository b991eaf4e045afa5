"""Fields of Ollama requests that are not served: each is refused, but for values that change nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mlxd.daemon.api.fields import FieldTable, Harmless
from mlxd.daemon.api.ollama.bodies import ChatBody, EmbedBody, EmbeddingsBody, GenerateBody, ShowBody
from mlxd.daemon.api.ollama.options import SERVED, Options

# Values beside null with which a field changes nothing; every other value asks for what is not there.
_GENERATION: Mapping[str, Harmless] = {
    "_debug_render_only": (False,),
    "shift": (False,),
    "truncate": (False,),
}

_GENERATE: Mapping[str, Harmless] = {
    **_GENERATION,
    "context": ([],),
    "height": (0,),
    "steps": (0,),
    "suffix": ("",),
    "template": ("",),
    "width": (0,),
}

# Those of Ollama's own default change nothing either.
_OPTIONS: Mapping[str, Harmless] = {
    "options.embedding_only": (False,),
    "options.mirostat": (0, 0.0),
    "options.penalize_newline": (True,),
    "options.repeat_last_n": (-1, 64),
    "options.rope_frequency_base": (0, 0.0),
    "options.rope_frequency_scale": (0, 0.0),
    "options.tfs_z": (1, 1.0),
    "options.typical_p": (1, 1.0),
    "options.vocab_only": (False,),
}

CHAT = FieldTable(ChatBody.__struct_fields__, frozenset(), _GENERATION)
GENERATE = FieldTable(GenerateBody.__struct_fields__, frozenset(), _GENERATE)
SHOW = FieldTable(
    ShowBody.__struct_fields__, frozenset({"verbose"}), {"system": ("",), "template": ("",), "options": ({},)}
)
EMBED = FieldTable(EmbedBody.__struct_fields__)
EMBEDDINGS = FieldTable(EmbeddingsBody.__struct_fields__)
_KNOWN = frozenset(f"options.{name}" for name in Options.__struct_fields__)
OPTIONS = FieldTable(_KNOWN, _KNOWN - {f"options.{name}" for name in SERVED}, _OPTIONS)
# No option says anything of a vector.
VECTOR_OPTIONS = FieldTable(_KNOWN, _KNOWN, _OPTIONS)


def check(body: Mapping[str, Any], table: FieldTable) -> None:
    """Raise InvalidField for a field, or an option, that asks for what is not there or that nobody knows."""
    table.check(body)
    OPTIONS.check(_options(body))


def passed_over(body: Mapping[str, Any], table: FieldTable, options: FieldTable = OPTIONS) -> Iterator[str]:
    """The fields and options of `body` that change nothing."""
    yield from table.passed_over(body)
    yield from options.passed_over(_options(body))


def _options(body: Mapping[str, Any]) -> dict[str, Any]:
    """The options by their full names; none where something else stands in their place."""
    options = body.get("options")
    return {f"options.{name}": value for name, value in options.items()} if isinstance(options, dict) else {}
