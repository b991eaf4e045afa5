"""Function tools: what a client offers, and what the model may or must do with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from mlxd.daemon.api.refusals import InvalidField
from mlxd.daemon.api.tool_use import MAX_TOOL_NAME, NO_PARAMETERS, ToolUse

FunctionName = Annotated[str, Meta(min_length=1, max_length=MAX_TOOL_NAME)]


class Function(Struct, frozen=True):
    """What can be called; `parameters` is a JSON Schema."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Struct, frozen=True):
    """One entry of `tools`."""

    type: str
    function: Function | None = None


class FunctionChoice(Struct, frozen=True, forbid_unknown_fields=True):
    """The name of a function."""

    name: FunctionName


class NamedChoice(Struct, frozen=True, forbid_unknown_fields=True):
    """A `tool_choice` that names the function to call."""

    type: Literal["function"]
    function: FunctionChoice


ToolChoice = Literal["none", "auto", "required"] | NamedChoice


def tool_use(
    tools: Sequence[Tool] | None, raw: Sequence[Mapping[str, Any]] | None, choice: ToolChoice | None, parallel: bool
) -> ToolUse:
    """What a request says about tools; `raw` holds them as they were sent. Raises InvalidField."""
    names = _names(tools or ())
    name = choice.function.name if isinstance(choice, NamedChoice) else None
    if name is not None and name not in names:
        raise InvalidField("tool_choice.function.name: no function of tools has this name", "tool_choice.function.name")
    if choice == "required" and not names:
        raise InvalidField("tool_choice: required needs tools to choose from", "tool_choice")
    max_calls = 1 if name is not None or not parallel else None
    if choice == "none":
        return ToolUse(max_calls=max_calls)
    offered = tuple(_for_template(tool) for tool in raw or ())
    return ToolUse(offered, max_calls, must_call=name is not None or choice == "required", name=name)


def _names(tools: Sequence[Tool]) -> set[str]:
    names: set[str] = set()
    for index, tool in enumerate(tools):
        place = f"tools[{index}]"
        if tool.type != "function":
            raise InvalidField(f"{place}.type: only function tools are taken here", f"{place}.type")
        if tool.function is None:
            raise InvalidField(f"{place}.function: it is required", f"{place}.function")
        if tool.function.name in names:
            raise InvalidField(f"{place}.function.name: another tool has this name", f"{place}.function.name")
        names.add(tool.function.name)
    return names


def _for_template(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """The tool with parameters in any case: templates read them unasked."""
    function = {name: value for name, value in tool["function"].items() if value is not None}
    return {**tool, "function": {**function, "parameters": function.get("parameters", NO_PARAMETERS)}}
