"""Function tools that a model is offered, and what it may or must do with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mlxd.daemon.api.body import decode_object
from mlxd.daemon.api.refusals import InvalidField, UnsupportedCapability
from mlxd.daemon.api.wanted_guide import WantedGuide
from mlxd.engines.errors import InvalidRequest
from mlxd.engines.guidance import check_guide
from mlxd.engines.guide_tools import guide_for_tools
from mlxd.engines.tokenizer import Tokenizer
from mlxd.engines.types import Guide

MAX_TOOLS = 512
MAX_TOOL_NAME = 128
# What templates are shown of a tool that says nothing of its parameters: they read them unasked.
NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools that a model is offered, as OpenAI writes them, which is what chat templates read.

    With `must_call` the answer is a call, of `name` if that is set. After `max_calls` calls it ends (None for no
    bound). `param` is the field that asks for calls.
    """

    tools: tuple[Mapping[str, Any], ...] = ()
    max_calls: int | None = None
    must_call: bool = False
    name: str | None = None
    param: str = "tool_choice"

    def check(self, tokenizer: Tokenizer) -> None:
        """Raise UnsupportedCapability when there are tools and the model makes no calls."""
        if self.tools and not tokenizer.has_tools:
            message = f"this model makes no tool calls; leave tools out, or send {self.param} none"
            raise UnsupportedCapability(message, "tools")

    def guide(self, tokenizer: Tokenizer, form: WantedGuide | None) -> Guide | None:
        """The form of an answer, known to compile: a call if it has to be one, else `form` or a call.

        Takes a while, so not for the event loop. Raises InvalidField.
        """
        if not self.tools or not (self.must_call or form):
            return form.check(tokenizer) if form is not None else None
        param, other = (form.param, form.guide) if form is not None else (self.param, None)
        try:
            guide = guide_for_tools(tokenizer, self.tools, self.name, parallel=self.max_calls != 1, form=other)
            return check_guide(tokenizer, guide)
        except InvalidRequest as error:
            raise InvalidField(f"{param}: {error}", param) from error


def call_arguments(text: str, place: str) -> dict[str, Any]:
    """The arguments of a call as templates read them, from their JSON text at `place`. Raises InvalidField."""
    try:
        return decode_object((text or "{}").encode())
    except InvalidField:
        raise InvalidField(f"{place}: expected the JSON text of an object", place) from None


def function_tool(name: str, description: str | None, parameters: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """A tool as templates read it; `parameters` is a JSON Schema."""
    function: dict[str, Any] = {"name": name}
    if description is not None:
        function["description"] = description
    return {"type": "function", "function": {**function, "parameters": parameters or NO_PARAMETERS}}
