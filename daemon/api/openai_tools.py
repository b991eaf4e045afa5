"""Function tools: what a client offers, and what the model may or must do with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from mlxd.daemon.api.openai_guides import WantedGuide
from mlxd.daemon.api.refusals import InvalidField, UnsupportedCapability
from mlxd.engines.errors import InvalidRequest
from mlxd.engines.guidance import check_guide
from mlxd.engines.guide_tools import guide_for_tools
from mlxd.engines.tokenizer import Tokenizer
from mlxd.engines.types import Guide

MAX_NAME = 128

_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}

FunctionName = Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]


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


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The function tools that a model is offered. With `must_call` the answer is a call, of `name` if that is set."""

    tools: tuple[Mapping[str, Any], ...] = ()
    max_calls: int | None = None
    must_call: bool = False
    name: str | None = None

    def check(self, tokenizer: Tokenizer) -> None:
        """Raise UnsupportedCapability when there are tools and the model makes no calls."""
        if self.tools and not tokenizer.has_tools:
            message = "this model makes no tool calls; leave tools out, or send tool_choice none"
            raise UnsupportedCapability(message, "tools")

    def guide(self, tokenizer: Tokenizer, form: WantedGuide | None) -> Guide | None:
        """The form of an answer, known to compile: a call if it has to be one, else `form` or a call.

        Takes a while, so not for the event loop. Raises InvalidField.
        """
        if not self.tools or not (self.must_call or form):
            return form.check(tokenizer) if form is not None else None
        param, other = (form.param, form.guide) if form is not None else ("tool_choice", None)
        try:
            guide = guide_for_tools(tokenizer, self.tools, self.name, parallel=self.max_calls != 1, form=other)
            return check_guide(tokenizer, guide)
        except InvalidRequest as error:
            raise InvalidField(f"{param}: {error}", param) from error


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
    return {**tool, "function": {**function, "parameters": function.get("parameters", _NO_PARAMETERS)}}
