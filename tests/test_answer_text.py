"""Chat answers taken apart: reasoning, calls, text, and the stop strings in it."""

from __future__ import annotations

import json

import pytest
from answer_models import END, THINK, joined, outputs, read, real_stream, stream_of, thinker, wrapper
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.chat_templates.muse_spark import RESPONSE_FORMAT

from mlxd.engines.backend import TextPiece
from mlxd.engines.call_parser import MAX_CALL_LENGTH
from mlxd.engines.text_stream import StoppableText
from mlxd.engines.types import ToolCall

MODEL = thinker()
CODER = thinker("mistral", template="[TOOL_CALLS]{% if tools %}{{ tools | tojson }}{% endif %}")
OPEN = "user: Hi\nassistant:\n<think>\n"
CALL = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
MADE = (ToolCall("f", '{"x":1}'),)
BAD_CALL = "<tool_call>f(1)</tool_call>"


def called(arguments: str, **options) -> TextPiece:
    return read(MODEL, f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>', **options)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Hello.", TextPiece("Hello.")),
        ("<think>\nHm.\n</think>\n\nHello.\n", TextPiece("Hello.\n", "Hm.")),
        ("<think>\n\n</think>\n\nHello.", TextPiece("Hello.")),
        ("\n\n<think>Hm.", TextPiece("", "Hm.")),
        ("\n Hello.", TextPiece("\n Hello.")),
        ("\n\n", TextPiece("\n\n")),
        ("<think>Hm.</think>\n\n", TextPiece("", "Hm.")),
        ("One.\n<think>Hm.</think>\nTwo.", TextPiece("One.\n\nTwo.", "Hm.")),
        ("<think>a</think> b <think> c </think>", TextPiece("b ", "a\nc")),
        ("I know </think>.", TextPiece("I know </think>.")),
        (f"\n\n{CALL}\n", TextPiece(tool_calls=MADE)),
        (f"Look:\n{CALL}\n{CALL}\n", TextPiece("Look:\n", tool_calls=MADE * 2)),
        (f"{CALL}\n\nDone.", TextPiece("Done.", tool_calls=MADE)),
        (f"Look.{CALL}\nDone.", TextPiece("Look.\nDone.", tool_calls=MADE)),
        (f"<think>Hm.\n</think>\n\n{CALL}", TextPiece("", "Hm.", MADE)),
        (f"<think>Hm.\n{CALL}\nDone.", TextPiece("Done.", "Hm.", MADE)),
        (f"\n{BAD_CALL}\n", TextPiece(f"\n{BAD_CALL}\n")),
        (f"<think>Or {BAD_CALL} so.</think>No.", TextPiece("No.", f"Or {BAD_CALL} so.")),
        (f"<tool_call>{CALL}", TextPiece(f"<tool_call>{CALL}")),
    ],
)
def test_an_answer_is_taken_apart_however_it_is_spread_over_tokens(text: str, answer: TextPiece):
    assert read(MODEL, text) == answer
    assert read(MODEL, list(text)) == answer
    for at in range(1, len(text)):
        assert read(MODEL, [text[:at], text[at:]]) == answer, text[:at]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Hm.\n</think>\n\nHello.", TextPiece("Hello.", "Hm.")),
        ("\nHm. Hm.", TextPiece("", "Hm. Hm.")),
        ("</think>\n\nHello.", TextPiece("Hello.")),
        (f"Hm.\n{CALL}", TextPiece("", "Hm.", MADE)),
        ("Hm <tool_call>", TextPiece("", "Hm <tool_call>")),
    ],
)
def test_an_answer_whose_thought_the_prompt_opened_begins_as_reasoning(text: str, answer: TextPiece):
    assert read(MODEL, list(text), prompt=OPEN) == answer
    assert read(MODEL, text, prompt=OPEN) == answer


@pytest.mark.parametrize("prompt", [f"{OPEN}\n</think>\n\n", "What is <think>?\nassistant:\n", "Hi", "<think> Why? "])
def test_a_thought_that_the_prompt_closed_or_spoke_of_is_not_open(prompt: str):
    assert read(MODEL, "Hello.", prompt=prompt) == TextPiece("Hello.")


@pytest.mark.parametrize("mark", [*THINK, "<tool_call>"])
def test_half_a_marker_at_the_end_is_what_it_stands_in(mark: str):
    for end in range(1, len(mark)):
        assert read(MODEL, ["Hello.", *mark[:end]]) == TextPiece(f"Hello.{mark[:end]}")
        assert read(MODEL, ["Hm.", *mark[:end]], prompt=OPEN) == TextPiece("", f"Hm.{mark[:end]}")


def test_text_that_could_be_no_marker_is_shown_at_once():
    stream = stream_of(MODEL, ["a", " <", "b", "<thin", "g"])
    assert [stream.push(token).text for token in range(5)] == ["a", " ", "<b", "", "<thing"]


def test_reasoning_is_shown_as_it_comes_and_a_call_when_it_is_complete():
    stream = stream_of(MODEL, ["Hm", ", so.", "</think>", "\n", CALL[:20], CALL[20:]], prompt=OPEN)
    assert [stream.push(token) for token in range(6)] == [
        TextPiece("", "Hm"),
        TextPiece("", ", so."),
        *[TextPiece()] * 3,
        TextPiece(tool_calls=MADE),
    ]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"a": "ö", "b": [1.5, null, true]}', '{"a":"ö","b":[1.5,null,true]}'),
        ('"{\\"a\\":  1}"', '{"a":  1}'),
        ("{}", "{}"),
        ("null", "{}"),
        ('""', "{}"),
        ('{"a": "\\ud800"}', '{"a":"\\ud800"}'),
        ('"{\\"a\\": \\"\\\\ud800\\"}"', '{"a": "\\ud800"}'),
    ],
)
def test_arguments_are_compact_json_that_can_be_sent(arguments: str, text: str):
    (call,) = called(arguments).tool_calls
    assert call.arguments == text
    assert isinstance(json.loads(call.arguments.encode()), dict)


@pytest.mark.parametrize(
    "arguments", ["[1]", "1", '"no json"', '{"a": NaN}', '{"a": 1e999}', '"{\\"a\\": NaN}"', "[" * 5000]
)
def test_arguments_that_are_no_json_object_make_no_call(arguments: str):
    answer = called(arguments)
    assert answer.tool_calls == ()
    assert answer.text.startswith('<tool_call>{"name": "f", "arguments": ')


@pytest.mark.parametrize("body", ["1", '"f"', "[]", "{}", '{"name": ""}', '{"name": 1}', '{"name": "\\ud800"}', "[1]"])
def test_json_that_names_no_function_makes_no_call(body: str):
    text = f"<tool_call>{body}</tool_call>"
    assert read(MODEL, text) == TextPiece(text)


def test_a_parser_may_give_several_calls_and_what_the_model_calls_them():
    text = '[TOOL_CALLS][{"name": "f", "arguments": {}, "id": "abc"}, {"name": "g", "arguments": {}, "id": 1}]'
    assert read(CODER, text) == TextPiece(tool_calls=(ToolCall("f", "{}", "abc"), ToolCall("g", "{}")))
    assert read(CODER, text, max_calls=1) == TextPiece(tool_calls=(ToolCall("f", "{}", "abc"),))


@pytest.mark.parametrize("step", [1, 7, 10**6])
def test_a_call_that_is_too_long_is_text_as_it_was_written_and_so_is_what_follows(step: int):
    long = f'<tool_call>{{"name": "f", "arguments": {{"x": "{"y" * MAX_CALL_LENGTH}"}}}}</tool_call>'
    text = f"Now: {long} {CALL}"
    pieces = [text[at : at + step] for at in range(0, len(text), step)]
    assert read(MODEL, pieces) == TextPiece(f"Now: {long} ", tool_calls=MADE)


def test_the_longest_call_is_still_a_call():
    body = '{"name": "f", "arguments": {"x": ""}}'
    text = body.replace('""', f'"{"y" * (MAX_CALL_LENGTH - len(body))}"')
    (call,) = read(MODEL, f"<tool_call>{text}</tool_call>").tool_calls
    assert len(call.arguments) > MAX_CALL_LENGTH - 60


def test_a_stop_string_ends_the_text_and_is_not_shown():
    pieces = list("<think>Hm.</think>One, two, three.")
    stream = stream_of(MODEL, pieces, stop=("two",))
    assert joined(outputs(stream, len(pieces))) == TextPiece("One, ", "Hm.")
    assert stream.stopped
    assert not stream.push(0)
    assert not stream.finish()


@pytest.mark.parametrize(
    ("stops", "found"),
    [
        (("two", "three"), "two"),
        (("three", "two"), "two"),
        (("o t", "two"), "two"),
        (("e t", "two"), "e t"),
        (("x",), None),
    ],
)
def test_the_stop_string_that_was_found_is_told(stops: tuple[str, ...], found: str | None):
    stream = stream_of(MODEL, list("one two three"), stop=stops)
    outputs(stream, len("one two three"))
    assert stream.stop == found


def test_an_answer_that_its_last_call_ends_was_stopped_by_no_string():
    stream = stream_of(MODEL, list(CALL), stop=("x",), max_calls=1)
    outputs(stream, len(CALL))
    assert stream.stopped
    assert stream.stop is None


@pytest.mark.parametrize("stop", ["Hm", "name", '"', "<", "</think>", "<tool_call>", "\n"])
def test_a_stop_string_cuts_neither_reasoning_nor_a_call(stop: str):
    text = f"<think>Hm.\n</think>\n{CALL}"
    assert read(MODEL, list(text), stop=(stop,)) == TextPiece("", "Hm.", MADE)


def test_a_call_that_is_none_can_hold_a_stop_string():
    assert read(MODEL, list(f"Now {BAD_CALL} go"), stop=("f(1",)) == TextPiece("Now <tool_call>")


def test_the_start_of_a_stop_string_is_shown_with_the_last_call_that_is_allowed():
    assert read(MODEL, list(f"a lot{CALL}"), stop=("lots",), max_calls=1) == TextPiece("a lot", tool_calls=MADE)


def test_a_stop_string_of_white_space_ends_an_answer_of_white_space():
    stream = stream_of(MODEL, ["\n", "\n", "\n"], stop=("\n\n",))
    assert joined(outputs(stream, 3)) == TextPiece()
    assert stream.stopped


def test_before_min_tokens_a_stop_string_is_text():
    for model in (MODEL, wrapper()):
        answer = read(model, ["x", ".", "x", ".", "x"], stop=("x",), min_tokens=2)
        assert answer == TextPiece("x.")


def test_an_end_token_that_does_not_end_the_answer_has_no_text():
    tokens = MODEL.encode(f"a{END}b", add_special_tokens=False)
    assert len(tokens) == 3
    stream = real_stream(MODEL, ignore_eos=True)
    assert joined([*(stream.push(token) for token in tokens), stream.finish()]) == TextPiece("ab")


def test_ids_that_are_no_tokens_have_no_text():
    stream = real_stream(MODEL)
    assert joined([stream.push(10**6), stream.push(len(MODEL)), stream.finish()]) == TextPiece()


# mlx-lm's byte-level detokenizer shows a zero byte as the letter that stands for it.
@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=30))
def test_characters_of_several_tokens_come_out_whole(text: str):
    tokens = MODEL.encode(f"x{text}", add_special_tokens=False)
    stream = real_stream(MODEL)
    assert joined([*(stream.push(token) for token in tokens), stream.finish()]) == read(MODEL, f"x{text}")


def test_a_chat_of_a_model_without_markers_is_plain_text():
    assert isinstance(stream_of(wrapper(), ["a"]), StoppableText)
    assert isinstance(stream_of(wrapper(parser="json_tools"), ["a"], tools=()), StoppableText)
    assert read(wrapper(), f"\n<think>a</think>{CALL}") == TextPiece(f"\n<think>a</think>{CALL}")


def test_the_markers_of_an_answer_that_mean_nothing_to_a_reader_are_not_shown():
    model = wrapper(("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"), "kimi_k3")
    text = "<|open|>think<|sep|>Hm.<|close|>think<|sep|><|open|>response<|sep|>Hi.<|close|>response<|sep|>"
    assert read(model, list(f"{text}<|close|>message<|sep|>")) == TextPiece("Hi.", "Hm.")


MUSE = wrapper(parser="muse_spark", response_format=RESPONSE_FORMAT)


ATEM = (
    '<atem:function_calls><atem:invoke name="f"><atem:parameter name="x">1</atem:parameter></atem:invoke>'
    "</atem:function_calls>"
)
THOUGHT = "to=self<|message|>Hm.<|eom|><|start|>assistant "


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (f"{THOUGHT}to=user<|message|>Hi.<|eot|>", TextPiece("Hi.", "Hm.")),
        (f"{THOUGHT}to=f<|message|>{ATEM}<|eot|>", TextPiece("", "Hm.", MADE)),
        (f"to=f<|message|>{ATEM}<|eom|><|start|>assistant to=user<|message|>Hi.", TextPiece("Hi.", "", MADE)),
        ("to=f<|message|><atem:function_calls>f", TextPiece("<atem:function_calls>f")),
    ],
)
def test_an_answer_in_a_format_of_its_own_is_taken_apart_without_its_headers(text: str, answer: TextPiece):
    assert read(MUSE, text) == answer
    assert read(MUSE, list(text)) == answer


def test_without_tools_a_call_in_a_format_of_its_own_is_text():
    assert read(MUSE, list(f"{THOUGHT}to=f<|message|>{ATEM}"), tools=()) == TextPiece(ATEM, "Hm.")


PARTS = st.sampled_from(
    [
        *THINK,
        CALL,
        BAD_CALL,
        "<tool_call>",
        "</tool_call>",
        "<thi",
        "<",
        "</",
        "a",
        "stop",
        "st",
        " ",
        "\n\n",
        '"name": "f"',
    ]
)


@given(
    st.lists(PARTS, max_size=12),
    st.data(),
    st.booleans(),
    st.sampled_from([(), ("stop",), ("a<", "\n\n")]),
    st.booleans(),
)
@settings(max_examples=300)
def test_however_an_answer_is_split_it_is_the_same_answer(parts, data, is_open, stop, has_tools):
    text = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=20)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    options = {"prompt": OPEN if is_open else "Hi", "stop": stop, "tools": None if has_tools else ()}
    options = {name: value for name, value in options.items() if value is not None}
    whole = read(MODEL, text, **options)
    assert read(MODEL, pieces, **options) == whole
    assert read(MODEL, list(text), **options) == whole
    assert not any(word in whole.text for word in stop)
