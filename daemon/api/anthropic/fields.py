"""Which fields of Anthropic requests are served, passed over by design, or refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mlxd.daemon.api.anthropic.blocks import REFUSED_BLOCKS
from mlxd.daemon.api.anthropic.bodies import CountBody, MessageBody
from mlxd.daemon.api.anthropic.tools import CUSTOM
from mlxd.daemon.api.fields import FieldTable, Harmless
from mlxd.daemon.api.refusals import InvalidField

# What concerns Anthropic's servers alone: accounts, tiers and caches, and contexts that are edited there.
_IGNORED = frozenset(
    {
        "anthropic_beta",
        "anthropic_version",
        "betas",
        "billing_policy",
        "context_management",
        "diagnostics",
        "fallbacks",
        "inference_geo",
        "metadata",
        "service_tier",
        "speed",
        "user_profile_id",
        "workspace_id",
    }
)

# How an answer is made and sent does not change what its prompt counts.
_NOT_COUNTED = frozenset({"max_tokens", "stream", "stop_sequences", "temperature", "top_p", "top_k"})

# Values beside null with which a field changes nothing; every other value asks for what is not there.
_REFUSED: Mapping[str, Harmless] = {
    "compaction": (),
    "container": (),
    "fallback_credit_token": (),
    "mcp_servers": ([],),
    "thread": (),
}

MESSAGES = FieldTable(MessageBody.__struct_fields__, _IGNORED, _REFUSED)
COUNT = FieldTable(CountBody.__struct_fields__, _IGNORED | _NOT_COUNTED, _REFUSED)

# Of objects inside a body: a tool that is not searched for is shown at once, and a form that a tool keeps to is kept
# only where it has to be called.
IGNORED_INSIDE: Mapping[str, tuple[str, ...]] = {
    "tools": ("defer_loading", "eager_input_streaming", "input_examples", "strict"),
    "output_config": ("task_budget",),
    "thinking": ("block_binding",),
}

# By these details Anthropic's clients know that they may go on without a thread.
_NO_THREADS = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}

_SHOWN = 60


def passed_over(table: FieldTable, body: Mapping[str, Any]) -> Iterator[str]:
    """The fields of a checked body that change nothing, those inside its objects as `object.field`."""
    yield from table.passed_over(body)
    for name, inner in IGNORED_INSIDE.items():
        value = body.get(name)
        objects = value if isinstance(value, list) else [value or {}]
        yield from (f"{name}.{field}" for field in inner if any(each.get(field) for each in objects))


def refuse_foreign(body: Mapping[str, Any]) -> None:
    """Raise InvalidField for a thread, and for a block or a tool of a known type that is not there, before its own
    fields are looked at.

    What has a wrong shape is left to the types.
    """
    if body.get("thread") is not None:
        reason = "thread: no conversation is kept here; leave it out, and send all of the messages"
        raise InvalidField(reason, "thread", details=_NO_THREADS)
    for index, message in _objects(body.get("messages")):
        for place, block in _blocks(message.get("content"), f"messages[{index}].content"):
            kind = block.get("type")
            if isinstance(kind, str) and kind in REFUSED_BLOCKS:
                where = f"{place}.type"
                raise InvalidField(f"{where}: {kind} blocks are not taken here: {REFUSED_BLOCKS[kind]}", where)
    for index, tool in _objects(body.get("tools")):
        named = tool.get("type")
        if isinstance(named, str) and named != CUSTOM:
            where = f"tools[{index}].type"
            shown = f"{where}: {named[:_SHOWN]} is not there"
            raise InvalidField(f"{shown}; only tools with an input_schema are taken, of type {CUSTOM}", where)


def _blocks(content: object, place: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The blocks of a content, and those inside them."""
    for index, block in _objects(content):
        yield f"{place}[{index}]", block
        yield from ((f"{place}[{index}].content[{number}]", inner) for number, inner in _objects(block.get("content")))


def _objects(value: object) -> Iterator[tuple[int, Mapping[str, Any]]]:
    elements = value if isinstance(value, list) else []
    return ((index, element) for index, element in enumerate(elements) if isinstance(element, dict))
