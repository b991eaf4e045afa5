"""Tool calls in every syntax that mlx-lm can read."""

from __future__ import annotations

import importlib
import json
import pkgutil
import time
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import mlx_lm.tool_parsers
import pytest
from answer_models import TOOLS, outputs, read, stream_of, wrapper
from hypothesis import given
from hypothesis import strategies as st

from mlxd.engines import call_parser
from mlxd.engines.backend import TextPiece
from mlxd.engines.call_parser import CallParser
from mlxd.engines.types import ToolCall

ARGUMENTS = '{"city":"Köln","days":2}'


@dataclass(frozen=True)
class Syntax:
    """A call of get_weather as a model writes it, and two of them in a row."""

    parser: str
    call: str
    two: str
    id: str | None = None

    @property
    def first(self) -> ToolCall:
        return ToolCall("get_weather", ARGUMENTS, self.id)


def syntax(parser: str, call: str, two: str = "", identity: str | None = None) -> Syntax:
    return Syntax(parser, call, two or f"{call}\n{call}", identity)


ARG_KEYS = (
    "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Köln</arg_value>"
    "<arg_key>days</arg_key><arg_value>2</arg_value></tool_call>"
)
INVOKE = (
    '<invoke name="get_weather"><parameter name="city">Köln</parameter><parameter name="days">2</parameter></invoke>'
)
KIMI = (
    '<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "Köln", "days": 2}<|tool_call_end|>'
)
XTML = (
    '<|open|>call tool="get_weather" index="1"<|sep|>'
    '<|open|>argument key="city" type="string"<|sep|>Köln<|close|>argument<|sep|>'
    '<|open|>argument key="days" type="integer"<|sep|>2<|close|>argument<|sep|><|close|>call<|sep|>'
)
HEADED = 'get_weather[ARGS]{"city": "Köln", "days": 2}'
ATEM = (
    '<atem:invoke name="get_weather"><atem:parameter name="city">"Köln"</atem:parameter>'
    '<atem:parameter name="days">2</atem:parameter></atem:invoke>'
)
SYNTAXES = [
    syntax(
        "json_tools",
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln", "days": 2}}\n</tool_call>',
    ),
    syntax(
        "qwen3_coder",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nKöln\n</parameter>\n"
        "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>",
    ),
    syntax("mistral", f"[TOOL_CALLS]{HEADED}", f"[TOOL_CALLS]{HEADED}[TOOL_CALLS]{HEADED}"),
    syntax("pythonic", '<|tool_call_start|>[get_weather(city="Köln", days=2)]<|tool_call_end|>'),
    syntax("glm47", ARG_KEYS),
    syntax("laguna", ARG_KEYS),
    syntax(
        "kimi_k2",
        f"<|tool_calls_section_begin|>{KIMI}<|tool_calls_section_end|>",
        f"<|tool_calls_section_begin|>{KIMI}{KIMI}<|tool_calls_section_end|>",
        "functions.get_weather:0",
    ),
    syntax("gemma4", '<|tool_call>call:get_weather{city:<|"|>Köln<|"|>,days:2}<tool_call|>'),
    syntax(
        "minimax_m2",
        f"<minimax:tool_call>\n{INVOKE}\n</minimax:tool_call>",
        f"<minimax:tool_call>\n{INVOKE}\n{INVOKE}\n</minimax:tool_call>",
    ),
    syntax(
        "longcat",
        "<longcat_tool_call>get_weather\n<longcat_arg_key>city</longcat_arg_key>\n"
        "<longcat_arg_value>Köln</longcat_arg_value>\n<longcat_arg_key>days</longcat_arg_key>\n"
        "<longcat_arg_value>2</longcat_arg_value>\n</longcat_tool_call>",
    ),
    syntax(
        "function_gemma",
        "<start_function_call>call:get_weather{city:<escape>Köln<escape>,days:2}<end_function_call>",
    ),
    syntax(
        "kimi_k3",
        f"<|open|>tools<|sep|>{XTML}<|close|>tools<|sep|>",
        f"<|open|>tools<|sep|>{XTML}{XTML}<|close|>tools<|sep|>",
    ),
    syntax(
        "minicpm5",
        '<function name="get_weather"><param name="city">Köln</param><param name="days">2</param></function>',
    ),
    syntax(
        "muse_spark",
        f"<atem:function_calls>{ATEM}</atem:function_calls>",
        f"<atem:function_calls>{ATEM}{ATEM}</atem:function_calls>",
    ),
]
# glm47 takes any words for a call, and longcat any JSON object for one without arguments.
STRICT = [one for one in SYNTAXES if one.parser not in ("glm47", "laguna")]
ENDLESS = ("mistral",)

by_syntax = pytest.mark.parametrize("syntax", SYNTAXES, ids=lambda one: one.parser)
wrapped = cache(lambda parser: wrapper(parser=parser))


def parser_of(name: str) -> CallParser:
    return CallParser(importlib.import_module(f"mlx_lm.tool_parsers.{name}").parse_tool_call)


def test_every_parser_of_mlx_lm_is_tried_here():
    assert {one.parser for one in SYNTAXES} == {
        module.name for module in pkgutil.iter_modules(mlx_lm.tool_parsers.__path__)
    }


@by_syntax
def test_a_call_is_read_and_leaves_no_text(syntax: Syntax):
    assert read(wrapped(syntax.parser), syntax.call) == TextPiece(tool_calls=(syntax.first,))


@by_syntax
def test_two_calls_come_in_their_order_and_leave_no_text(syntax: Syntax):
    answer = read(wrapped(syntax.parser), syntax.two)
    assert answer == TextPiece(tool_calls=(syntax.first, syntax.first))


@by_syntax
def test_a_call_may_be_split_over_tokens_anywhere(syntax: Syntax):
    text = f"Let me see. {syntax.call}"
    for at in range(len(text) + 1):
        answer = read(wrapped(syntax.parser), [text[:at], text[at:]])
        assert answer == TextPiece("Let me see. ", tool_calls=(syntax.first,)), text[:at]


@by_syntax
def test_a_call_in_letters_shows_nothing_of_itself(syntax: Syntax):
    pieces = list(syntax.call)
    given = outputs(stream_of(wrapped(syntax.parser), pieces), len(pieces))
    assert [piece for piece in given if piece] == [TextPiece(tool_calls=(syntax.first,))]


@by_syntax
def test_a_call_that_the_end_cuts_off_is_text_as_it_was_written(syntax: Syntax):
    for end in range(1, len(syntax.call)):
        answer = read(wrapped(syntax.parser), list(syntax.call[:end]))
        assert answer == TextPiece(syntax.call[:end])


@pytest.mark.parametrize("syntax", STRICT, ids=lambda one: one.parser)
@pytest.mark.parametrize("garbage", ["", " ", "I am not sure }{", "\x00\ufffd'\"\\", "a < b"])
def test_what_is_no_call_is_text_as_it_was_written(syntax: Syntax, garbage: str):
    start = wrapped(syntax.parser).tool_call_start
    text = f"{start}{garbage}{wrapped(syntax.parser).tool_call_end}"
    assert read(wrapped(syntax.parser), list(text)) == TextPiece(text)


@by_syntax
def test_without_tools_a_call_is_text(syntax: Syntax):
    assert read(wrapped(syntax.parser), list(syntax.two), tools=()) == TextPiece(syntax.two)


@pytest.mark.parametrize("syntax", [one for one in SYNTAXES if one.parser not in ENDLESS], ids=lambda one: one.parser)
def test_text_after_a_call_is_text_and_another_call_is_read(syntax: Syntax):
    answer = read(wrapped(syntax.parser), list(f"{syntax.call}\n\nDone.\n{syntax.call}"))
    assert answer == TextPiece("Done.\n", tool_calls=(syntax.first, syntax.first))


@by_syntax
def test_of_more_calls_than_are_allowed_the_first_is_the_last(syntax: Syntax):
    pieces = list(syntax.two + " more")
    stream = stream_of(wrapped(syntax.parser), pieces, max_calls=1)
    given = outputs(stream, len(pieces))
    assert stream.stopped
    assert sum(given, TextPiece()) == TextPiece(tool_calls=(syntax.first,))


@by_syntax
def test_a_parser_ends_soon_and_raises_nothing_whatever_a_long_text_repeats(syntax: Syntax):
    parse = parser_of(syntax.parser)
    words = [left + right for left, right in pairwise([*syntax.call.replace("<", " <").split(), syntax.call])]
    for word in words:
        text = (word * (call_parser.MAX_CALL_LENGTH // len(word) + 1))[: call_parser.MAX_CALL_LENGTH]
        started = time.monotonic()
        parse(text, TOOLS)
        assert time.monotonic() - started < 10 * call_parser.REGEX_SECONDS


@given(
    st.sampled_from(SYNTAXES),
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 30), st.text(max_size=8)), max_size=4),
)
def test_whatever_becomes_of_a_call_it_is_text_or_calls_with_json_objects(one: Syntax, changes):
    text = one.two
    for at, length, put in changes:
        text = text[:at] + put + text[at + length :]
    answer = read(wrapped(one.parser), text)
    assert answer == read(wrapped(one.parser), list(text))
    for call in answer.tool_calls:
        assert call.name
        assert isinstance(json.loads(call.arguments), dict)
        call.arguments.encode()


HOSTILE = {
    "glm47": "<arg_key>a</arg_key><arg_value>",
    "gemma4": 'call:a{<|"|>',
    "kimi_k3": "<|open|>call",
    "muse_spark": '<atem:invoke name="',
}


@pytest.mark.parametrize("parser", HOSTILE)
def test_a_text_that_a_parser_would_never_be_done_with_is_no_call(parser: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(call_parser, "REGEX_SECONDS", 0.2)
    text = HOSTILE[parser] * 3000
    started = time.monotonic()
    assert parser_of(parser)(text[: call_parser.MAX_CALL_LENGTH], TOOLS) is None
    assert time.monotonic() - started < 5
