"""Request bodies: what is refused names its field, what is taken arrives typed."""

import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxd.daemon.api.openai import fields
from mlxd.daemon.api.openai.bodies import ChatBody, CompletionBody
from mlxd.daemon.api.openai.parsing import parse_chat, parse_completion
from mlxd.daemon.api.refusals import ApiError, InvalidField, UnsupportedCapability

USER = {"role": "user", "content": "hi"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}


def chat(**fields):
    return parse_chat({"messages": [USER], **fields})


def completion(**fields):
    return parse_completion({"prompt": "hi", **fields})


BAD_CHATS = [
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": {}}, "messages"),
    ({"messages": [3]}, "messages[0]"),
    ({"messages": [USER, None]}, "messages[1]"),
    ({"messages": [{"content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": 3, "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "x` - at `$.top_p", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [{"type": "smell"}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]}, "messages[0].content[0].text"),
    ({"messages": [USER, {"role": "system", "content": None}]}, "messages[1].content"),
    ({"messages": [USER, {"role": "assistant"}]}, "messages[1].content"),
    ({"messages": [USER, {"role": "assistant", "content": None, "tool_calls": []}]}, "messages[1].content"),
    ({"messages": [{"role": "assistant", "content": "x", "audio": {"id": "1"}}]}, "messages[0].audio"),
    ({"messages": [{"role": "assistant", "content": "x", "function_call": {}}]}, "messages[0].function_call"),
    ({"messages": [{"role": "assistant", "tool_calls": [{"id": "c"}]}]}, "messages[0].tool_calls[0].function"),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]},
        "messages[0].tool_calls[0].function.arguments",
    ),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]}]},
        "messages[0].tool_calls[0].function.arguments",
    ),
    ({"model": 3}, "model"),
    ({"model": ["m"]}, "model"),
    ({"stream": 1}, "stream"),
    ({"stream": "true"}, "stream"),
    ({"stream_options": True}, "stream_options"),
    ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"max_tokens": 10**30}, "max_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"temperature": 10**400}, "temperature"),
    ({"temperature": float("nan")}, "temperature"),
    ({"temperature": float("inf")}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.1}, "top_p"),
    ({"top_p": -1}, "top_p"),
    ({"top_p": float("nan")}, "top_p"),
    ({"top_k": -1}, "top_k"),
    ({"top_k": 1.0}, "top_k"),
    ({"min_p": -0.1}, "min_p"),
    ({"min_p": 1.1}, "min_p"),
    ({"seed": 1.5}, "seed"),
    ({"seed": True}, "seed"),
    ({"seed": 2**64}, "seed"),
    ({"seed": -(2**63) - 1}, "seed"),
    ({"stop": ""}, "stop"),
    ({"stop": 3}, "stop"),
    ({"stop": [""]}, "stop[0]"),
    ({"stop": ["a", None]}, "stop[1]"),
    ({"stop": ["a"] * 17}, "stop"),
    ({"stop": "x" * 1001}, "stop"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"repetition_penalty": -1}, "repetition_penalty"),
    ({"repetition_penalty": 11}, "repetition_penalty"),
    ({"presence_penalty": 2.5}, "presence_penalty"),
    ({"frequency_penalty": -2.5}, "frequency_penalty"),
    ({"logit_bias": [1]}, "logit_bias"),
    ({"logit_bias": {"5": 101}}, "logit_bias"),
    ({"logit_bias": {"5": True}}, "logit_bias"),
    ({"logit_bias": {"5": None}}, "logit_bias"),
    ({"logit_bias": {"-5": 1}}, "logit_bias"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"": 1}}, "logit_bias"),
    ({"logit_bias": {"1.0": 1}}, "logit_bias"),
    ({"logit_bias": {"٣": 1}}, "logit_bias"),
    ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
    ({"logit_bias": {str(token): 1 for token in range(1025)}}, "logit_bias"),
    ({"user": 3}, "user"),
    ({"metadata": []}, "metadata"),
    ({"store": True}, "store"),
    ({"chat_template_kwargs": []}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs.tokenize"),
    ({"chat_template_kwargs": {"chat_template": "{{ 1 }}"}}, "chat_template_kwargs.chat_template"),
    ({"functions": [{}]}, "functions"),
    ({"logprobs": 1}, "logprobs"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
    ({"n": 17}, "n"),
    ({"n": True}, "n"),
    ({"n": 0}, "n"),
    ({"audio": {}}, "audio"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"prediction": {}}, "prediction"),
    ({"xtc_probability": 1.5}, "xtc_probability"),
    ({"xtc_probability": float("nan")}, "xtc_probability"),
    ({"xtc_threshold": 0.6}, "xtc_threshold"),
    ({"xtc_threshold": -0.1}, "xtc_threshold"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"min_tokens": 1.0}, "min_tokens"),
    ({"min_tokens": 6, "max_tokens": 5}, "min_tokens"),
    ({"min_tokens": 6, "max_completion_tokens": 5}, "min_tokens"),
    ({"ignore_eos": 1}, "ignore_eos"),
    ({"reasoning_effort": "much"}, "reasoning_effort"),
    ({"reasoning_effort": {"effort": "low"}}, "reasoning_effort"),
    (
        {"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "low"}},
        "chat_template_kwargs.reasoning_effort",
    ),
    ({"prompt": "x"}, "prompt"),
    ({"temprature": 1}, "temprature"),
    ({"": 1}, ""),
    ({"x" * 10_000: 1}, "x" * 60),
]


@pytest.mark.parametrize(("fields", "param"), BAD_CHATS, ids=lambda value: repr(value)[:40])
def test_a_bad_chat_names_its_field(fields, param):
    with pytest.raises(ApiError) as refused:
        chat(**fields)
    assert refused.value.param == param
    assert str(refused.value)
    assert len(str(refused.value)) < 600


def test_missing_messages_are_named():
    with pytest.raises(InvalidField) as refused:
        parse_chat({"model": "m"})
    assert refused.value.param == "messages"


BAD_COMPLETIONS = [
    ({"prompt": None}, "prompt"),
    ({"prompt": 3}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": ["a"] * 129}, "prompt"),
    ({"prompt": ["a"] * 65, "n": 2}, "n"),
    ({"prompt": [[]]}, "prompt[0]"),
    ({"prompt": [[1], []]}, "prompt[1]"),
    ({"prompt": [1, "a"]}, "prompt"),
    ({"prompt": [1, [2]]}, "prompt"),
    ({"prompt": ["a", 1]}, "prompt[1]"),
    ({"prompt": [True]}, "prompt[0]"),
    ({"prompt": [1.5]}, "prompt[0]"),
    ({"prompt": [["a"]]}, "prompt[0][0]"),
    ({"prompt": {"text": "x"}}, "prompt"),
    ({"echo": True, "logprobs": 0}, "echo"),
    ({"echo": True, "prompt": [1, 2]}, "echo"),
    ({"suffix": "x"}, "suffix"),
    ({"best_of": 2}, "best_of"),
    ({"best_of": 2, "n": 2}, "best_of"),
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": -1}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    ({"reasoning_effort": "low"}, "reasoning_effort"),
    ({"n": 17}, "n"),
    ({"messages": []}, "messages"),
    ({"chat_template_kwargs": {}}, "chat_template_kwargs"),
    ({"max_completion_tokens": 3}, "max_completion_tokens"),
    ({"top_p": 0}, "top_p"),
]


@pytest.mark.parametrize(("fields", "param"), BAD_COMPLETIONS, ids=lambda value: repr(value)[:40])
def test_a_bad_completion_names_its_field(fields, param):
    with pytest.raises(InvalidField) as refused:
        completion(**fields)
    assert refused.value.param == param


@pytest.mark.parametrize(
    "part",
    [
        {"type": "input_audio", "input_audio": {}},
        {"type": "file", "file": {}},
    ],
)
def test_a_part_that_is_neither_text_nor_image_is_an_unsupported_capability(part):
    with pytest.raises(UnsupportedCapability) as refused:
        chat(messages=[USER, {"role": "user", "content": [{"type": "text", "text": "look"}, part]}])
    assert refused.value.param == "messages[1].content[1]"
    assert part["type"] in str(refused.value)


def test_an_unknown_field_is_answered_with_the_nearest_name():
    with pytest.raises(InvalidField, match="temperature"):
        chat(temprature=1)
    with pytest.raises(InvalidField, match="max_tokens"):
        completion(max_token=1)


@pytest.mark.parametrize("body", [ChatBody, CompletionBody])
def test_null_means_the_default_for_every_optional_field(body):
    table, parse, needed = (
        (fields.CHAT, chat, "messages") if body is ChatBody else (fields.COMPLETIONS, completion, "prompt")
    )
    names = [name for name in (*body.__struct_fields__, *table.refused) if name != needed]
    assert len(names) > 50
    assert parse(**dict.fromkeys(names)) == parse()


@pytest.mark.parametrize(
    ("table", "parse"),
    [(fields.CHAT, chat), (fields.COMPLETIONS, completion)],
    ids=["chat", "completion"],
)
def test_values_that_change_nothing_are_taken(table, parse):
    for name, values in table.refused.items():
        for value in values:
            assert parse(**{name: value}) == parse()


def test_no_field_is_both_served_and_refused():
    assert not set(ChatBody.__struct_fields__) & set(fields.CHAT.refused)
    assert not set(CompletionBody.__struct_fields__) & set(fields.COMPLETIONS.refused)


def test_fields_that_only_describe_the_caller_are_taken():
    harmless = {
        "user": "u",
        "metadata": {"a": "b"},
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "service_tier": "auto",
        "parallel_tool_calls": True,
        "store": False,
    }
    assert chat(**harmless) == chat()


def test_messages_arrive_as_templates_read_them():
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two", "cache_control": {}}]
    request = chat(
        messages=[
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": parts, "name": "ann"},
            {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None, "annotations": []},
            {"role": "tool", "content": "42", "tool_call_id": "c"},
            {"role": "assistant", "content": "done", "reasoning_content": "hm"},
        ]
    )
    assert request.messages == (
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "one\ntwo", "name": "ann"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}],
        },
        {"role": "tool", "content": "42", "tool_call_id": "c"},
        {"role": "assistant", "content": "done", "reasoning_content": "hm"},
    )


@pytest.mark.parametrize(
    ("prompt", "taken"),
    [
        ("x", ("x",)),
        (["x"], ("x",)),
        ([1, 2], ((1, 2),)),
        ([[1, 2]], ((1, 2),)),
        ("", ("",)),
        (["x", ""], ("x", "")),
        ([[1, 2], [3]], ((1, 2), (3,))),
        (["x", [3]], ("x", (3,))),
        (["x"] * 128, ("x",) * 128),
    ],
)
def test_prompts_are_texts_or_token_ids(prompt, taken):
    assert completion(prompt=prompt).text.prompts == taken


def test_messages_of_refusals_hold_no_quoting_of_the_parser():
    with pytest.raises(InvalidField) as refused:
        chat(temperature="hot")
    assert re.fullmatch(r"temperature: expected float \| null, got str", str(refused.value))


NAMES = st.sampled_from(
    [*ChatBody.__struct_fields__, *fields.CHAT.refused, "prompt", "role", "content", "type", "text"]
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["user", "text", "", "1", "x" * 70])
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3))


@given(st.dictionaries(NAMES, VALUES, max_size=4), st.booleans())
def test_whatever_is_sent_is_taken_or_refused(body, whole):
    for parse, default in ((parse_chat, {"messages": [USER]}), (parse_completion, {"prompt": "x"})):
        with contextlib.suppress(ApiError):
            parse({**default, **body} if whole else body)


TOOLS = [{"type": "function", "function": {"name": "f"}}]
BEGUN = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "I say \n"}]


@pytest.mark.parametrize("more", [{}, {"add_generation_prompt": False}, {"add_generation_prompt": None}])
def test_an_answer_goes_on_where_the_last_message_stops(more):
    request = chat(messages=BEGUN, continue_final_message=True, **more)
    assert request.continues
    assert request.messages[-1] == {"role": "assistant", "content": "I say"}
    assert not chat(messages=BEGUN).continues


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"add_generation_prompt": False}, "add_generation_prompt"),
        ({"continue_final_message": True, "add_generation_prompt": True, "messages": BEGUN}, "continue_final_message"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"continue_final_message": True, "messages": [*BEGUN[:1], {"role": "assistant", "content": " "}]}, None),
        ({"continue_final_message": True, "messages": BEGUN, "response_format": {"type": "json_object"}}, None),
        ({"continue_final_message": True, "messages": BEGUN, "tools": TOOLS, "tool_choice": "required"}, None),
    ],
)
def test_an_answer_that_cannot_go_on_is_refused(fields, param):
    with pytest.raises(InvalidField) as refused:
        chat(**fields)
    assert refused.value.param == (param or "continue_final_message")
