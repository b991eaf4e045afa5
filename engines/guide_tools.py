"""Guides for answers that have to be tool calls, in the model's own syntax."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlxd.engines.errors import InvalidRequest
from mlxd.engines.guidance import json_schema, plain_reason, regex_rule
from mlxd.engines.tokenizer import GuideKeeper, Tokenizer
from mlxd.engines.types import Guide, GuideKind

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Marker:
    """A string of the model's own: one token where it has one for it."""

    text: str


@dataclass(frozen=True, slots=True)
class Digits:
    """A short number."""


Piece = str | Marker | Digits


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """How a model writes calls: a call is `before`, the name, `between`, the arguments as JSON, `after`.

    Calls are joined by `separator`; all of them stand between `opening` and `closing`. The name is written as a JSON
    string, or with `plain_names` as it is.
    """

    before: tuple[Piece, ...]
    between: tuple[Piece, ...]
    after: tuple[Piece, ...] = ()
    separator: str = ""
    opening: tuple[Piece, ...] = ()
    closing: tuple[Piece, ...] = ()
    plain_names: bool = False


class ToolGrammar:
    """Writes grammars for one tokenizer."""

    def __init__(self, wrapper: Any) -> None:
        self._wrapper = wrapper
        self._syntax = _syntax(wrapper)

    def guide(self, tools: Sequence[Mapping[str, Any]], *, one: bool, form: Guide | None) -> Guide:
        """A guide for one call, or for one or more, of any of `tools`, or for `form` instead. Raises InvalidRequest."""
        syntax = self._syntax
        if syntax is None:
            raise InvalidRequest("calls cannot be required of this model, as its call syntax is not JSON; use auto")
        calls = [self._call(syntax, tool["function"], index) for index, tool in enumerate(tools)]
        names = " | ".join(f"call_{index}" for index in range(len(calls)))
        more = "" if one else f" ({self._pieces((syntax.separator,))} call)*"
        start = f"{self._pieces(syntax.opening)} call{more} {self._pieces(syntax.closing)}"
        rules = [f"start: {start}"] if form is None else ["start: calls | form", f"calls: {start}", _form_rule(form)]
        return Guide(GuideKind.GRAMMAR, "\n".join([*rules, f"call: {names}", *calls]))

    def _call(self, syntax: CallSyntax, function: Mapping[str, Any], index: int) -> str:
        name = str(function["name"])
        if syntax.plain_names and not _PLAIN_NAME.fullmatch(name):
            raise InvalidRequest(f"this model cannot write the function name {name!r}; use letters, digits, _ and -")
        written = name if syntax.plain_names else json.dumps(name, ensure_ascii=False)
        call = (*syntax.before, written, *syntax.between)
        return (
            f"call_{index}: {self._pieces(call)} arguments_{index} {self._pieces(syntax.after)}\n"
            f"arguments_{index}: %json {_parameters(function)}"
        )

    def _pieces(self, pieces: Sequence[Piece]) -> str:
        return " ".join(self._piece(piece) for piece in pieces if piece != "")

    def _piece(self, piece: Piece) -> str:
        if isinstance(piece, Digits):
            return "/[0-9]{1,4}/"
        if isinstance(piece, str):
            return _literal(piece)
        tokens = self._wrapper.encode(piece.text, add_special_tokens=False)
        return f"<[{tokens[0]}]>" if len(tokens) == 1 else _literal(piece.text)


def guide_for_tools(
    tokenizer: Tokenizer,
    tools: Sequence[Mapping[str, Any]],
    name: str | None,
    *,
    parallel: bool = True,
    form: Guide | None = None,
) -> Guide:
    """A guide for an answer that is calls of `tools` (OpenAI's tool objects), at least one, or has `form` instead.

    With `name` it is exactly one call of that function; without `parallel` exactly one of any. Raises InvalidRequest
    when the model's call syntax cannot be written, parameters are no JSON Schema, or `form` is a grammar.
    """
    if isinstance(tokenizer, GuideKeeper):
        return tokenizer.guide_for_tools(tools, name, parallel=parallel, form=form)
    wanted = [tool for tool in tools if name is None or tool["function"]["name"] == name]
    if not wanted:
        raise InvalidRequest("there is no function to call")
    grammar = tokenizer.once(ToolGrammar, ToolGrammar)
    return grammar.guide(wanted, one=name is not None or not parallel, form=form)


def _form_rule(form: Guide) -> str:
    """The rule `form` of a grammar. Raises InvalidRequest."""
    try:
        match form.kind:
            case GuideKind.JSON_SCHEMA:
                return f"form: %json {json_schema(form.text)}"
            case GuideKind.REGEX:
                return f"form: {regex_rule(form.text)}"
            case GuideKind.GRAMMAR:
                raise InvalidRequest(
                    "a grammar cannot be combined with tools; leave tools out, or send tool_choice none"
                )
    except ValueError as error:
        raise InvalidRequest(plain_reason(error)) from error


def _syntax(wrapper: Any) -> CallSyntax | None:
    """The syntax that mlx-lm's parser for this model reads; None when its arguments are not written as JSON."""
    start, end = Marker(wrapper.tool_call_start or ""), Marker(wrapper.tool_call_end or "")
    parser = wrapper.tool_parser.__module__.rpartition(".")[2] if wrapper.tool_parser is not None else None
    match parser:
        case "json_tools":
            return CallSyntax(
                before=(start, '\n{"name": '), between=(', "arguments": ',), after=("}\n", end), separator="\n"
            )
        case "mistral" if "[ARGS]" not in wrapper.get_vocab():
            return CallSyntax(
                before=('{"name": ',),
                between=(', "arguments": ',),
                after=("}",),
                separator=", ",
                opening=(start, "["),
                closing=("]",),
            )
        case "mistral":
            return CallSyntax(before=(start,), between=(Marker("[ARGS]"),), plain_names=True)
        case "kimi_k2":
            return CallSyntax(
                before=(Marker("<|tool_call_begin|>"), "functions."),
                between=(":", Digits(), Marker("<|tool_call_argument_begin|>")),
                after=(Marker("<|tool_call_end|>"),),
                opening=(start,),
                closing=(end,),
                plain_names=True,
            )
    return None


def _parameters(function: Mapping[str, Any]) -> str:
    """The schema of a function's arguments, written with the spaces that models are trained on."""
    parameters = function.get("parameters") or {}
    kind = parameters.get("type", "object")
    if "object" not in (kind if isinstance(kind, list) else [kind]):
        raise InvalidRequest(f"the parameters of {function['name']!r}: arguments are an object, so is their type")
    try:
        text = json.dumps({"type": "object", **parameters})
        return json_schema(text, item_separator=", ", key_separator=": ")
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"the parameters of {function['name']!r}: {plain_reason(error)}") from error


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
