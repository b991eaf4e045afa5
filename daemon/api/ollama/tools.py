"""Function tools as Ollama clients offer them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from mlxd.daemon.api.refusals import InvalidField
from mlxd.daemon.api.tool_use import MAX_TOOL_NAME, ToolUse, function_tool


class Function(Struct, frozen=True):
    """What can be called; `parameters` is a JSON Schema."""

    name: Annotated[str, Meta(min_length=1, max_length=MAX_TOOL_NAME)]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(Struct, frozen=True):
    """One entry of `tools`."""

    function: Function
    type: Literal["function"] | None = None


def tool_use(tools: Sequence[Tool] | None) -> ToolUse:
    """What a request offers; the model decides whether it calls. Raises InvalidField."""
    names: set[str] = set()
    for index, tool in enumerate(tools or ()):
        if tool.function.name in names:
            where = f"tools[{index}].function.name"
            raise InvalidField(f"{where}: another tool has this name", where)
        names.add(tool.function.name)
    functions = [tool.function for tool in tools or ()]
    offered = [function_tool(each.name, each.description, each.parameters) for each in functions]
    return ToolUse(tuple(offered), param="tools")
