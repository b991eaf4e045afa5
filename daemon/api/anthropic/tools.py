"""Tools of Anthropic requests: what a client offers, and what the model may or must do with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from mlxd.daemon.api.anthropic.blocks import CacheControl
from mlxd.daemon.api.refusals import InvalidField
from mlxd.daemon.api.tool_use import MAX_TOOL_NAME, MAX_TOOLS, ToolUse, function_tool

CUSTOM = "custom"

ToolName = Annotated[str, Meta(min_length=1, max_length=MAX_TOOL_NAME, pattern="^[a-zA-Z0-9_-]+$")]


class Tool(Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of `tools`; `input_schema` is a JSON Schema."""

    name: ToolName
    input_schema: dict[str, Any]
    description: str | None = None
    type: Literal["custom"] | None = None
    cache_control: CacheControl | None = None
    allowed_callers: list[str] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None
    eager_input_streaming: bool | None = None
    input_examples: list[dict[str, Any]] | None = None


Tools = Annotated[list[Tool], Meta(max_length=MAX_TOOLS)]


class AutoChoice(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="auto"):
    """The model may call tools."""

    disable_parallel_tool_use: bool | None = None


class AnyChoice(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="any"):
    """The model must call a tool."""

    disable_parallel_tool_use: bool | None = None


class NamedChoice(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="tool"):
    """The model must call this tool."""

    name: ToolName
    disable_parallel_tool_use: bool | None = None


class NoChoice(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="none"):
    """The model is shown no tools."""


ToolChoice = AutoChoice | AnyChoice | NamedChoice | NoChoice


def tool_use(tools: Sequence[Tool], choice: ToolChoice | None) -> ToolUse:
    """What a request says about tools. Raises InvalidField."""
    names = _names(tools)
    if isinstance(choice, AnyChoice | NamedChoice) and not names:
        raise InvalidField("tool_choice: it needs tools to choose from", "tool_choice")
    name = choice.name if isinstance(choice, NamedChoice) else None
    if name is not None and name not in names:
        raise InvalidField("tool_choice.name: none of tools has this name", "tool_choice.name")
    if isinstance(choice, NoChoice):
        return ToolUse()
    one = name is not None or (choice is not None and bool(choice.disable_parallel_tool_use))
    offered = tuple(function_tool(tool.name, tool.description, tool.input_schema) for tool in tools)
    return ToolUse(offered, 1 if one else None, isinstance(choice, AnyChoice | NamedChoice), name)


def _names(tools: Sequence[Tool]) -> set[str]:
    names: set[str] = set()
    for index, tool in enumerate(tools):
        if tool.name in names:
            raise InvalidField(f"tools[{index}].name: another tool has this name", f"tools[{index}].name")
        if tool.allowed_callers is not None and "direct" not in tool.allowed_callers:
            place = f"tools[{index}].allowed_callers"
            raise InvalidField(f"{place}: nothing but the model itself calls tools here; add direct", place)
        names.add(tool.name)
    return names
