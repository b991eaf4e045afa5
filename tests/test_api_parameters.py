"""What requests ask for, over the real registry and real engines, read by the openai client."""

import json

import openai
import pytest
from test_api_daemon import HELLO, running
from tiny_models import ANSWER_MARKERS, TOOL_TEMPLATE, build_reciting_model

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
CALL = ["<tool_call>", '{"name": "weather"', ', "arguments": {"city":', ' "Paris"}}', "</tool_call>"]
ANSWER = ["It is", " Paris", " they mean.", "</think>", "I", " look.", *CALL]


@pytest.fixture
async def served(models_dir, tiny_model):
    async with running(models_dir({"tiny": tiny_model})) as served:
        yield served


@pytest.fixture
async def calling(models_dir, tmp_path):
    """Models that answer with reasoning, text and two calls, and with an emoji whose bytes are three tokens."""
    build_reciting_model(tmp_path / "caller", [*ANSWER, *CALL], template=TOOL_TEMPLATE, added=ANSWER_MARKERS)
    emoji = "😀".encode()
    build_reciting_model(tmp_path / "emoji", ["a", emoji[:1], emoji[1:3], emoji[3:], "b"])
    folder = models_dir({"tiny": tmp_path / "emoji", "caller": tmp_path / "caller"})
    async with running(folder) as served:
        yield served


async def texts_of(stream):
    """The text of each choice of a streamed chat."""
    texts = {}
    async for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
    return [texts[index] for index in sorted(texts)]


async def test_with_a_seed_the_first_of_several_choices_is_the_answer_without_them(served):
    asked = {"temperature": 1.5, "seed": 11, "max_tokens": 8}
    [alone] = (await served.chat(**asked)).choices
    several = await served.chat(**asked, n=4)
    texts = [choice.message.content for choice in several.choices]
    assert texts[0] == alone.message.content
    assert len(set(texts)) == 4
    assert several.usage.completion_tokens == 32
    assert await texts_of(await served.chat(**asked, n=4, stream=True)) == texts


async def test_several_prompts_are_answered_as_each_would_be_alone(served):
    prompts = ["import os", "def main", "class A"]
    together = await served.client.completions.create(model="tiny-cold", prompt=prompts, max_tokens=6)
    alone = [await served.client.completions.create(model="tiny-cold", prompt=each, max_tokens=6) for each in prompts]
    assert [choice.text for choice in together.choices] == [each.choices[0].text for each in alone]
    assert together.usage.prompt_tokens == sum(each.usage.prompt_tokens for each in alone)
    echoed = await served.client.completions.create(model="tiny-cold", prompt=prompts, max_tokens=6, echo=True)
    assert [choice.text for choice in echoed.choices] == [
        prompt + choice.text for prompt, choice in zip(prompts, together.choices, strict=True)
    ]


async def test_logprobs_tell_of_every_token_of_the_answer(served):
    whole = (await served.chat(logprobs=True, top_logprobs=3)).choices[0]
    entries = whole.logprobs.content
    assert len(entries) == 12
    assert (
        b"".join(bytes(entry.bytes) for entry in entries).decode(errors="replace").strip()
        == whole.message.content.strip()
    )
    for entry in entries:
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].token == entry.token  # greedy
        assert entry.top_logprobs[0].logprob == entry.logprob <= 0
    stream = await served.chat(logprobs=True, top_logprobs=3, stream=True)
    streamed = [
        e async for chunk in stream for c in chunk.choices if c.logprobs is not None for e in c.logprobs.content
    ]
    assert streamed == entries


async def test_a_completions_logprobs_are_parallel_lists(served):
    answer = await served.client.completions.create(model="tiny-cold", prompt="import os", max_tokens=5, logprobs=2)
    [choice] = answer.choices
    lists = choice.logprobs
    assert len(lists.tokens) == len(lists.token_logprobs) == len(lists.top_logprobs) == len(lists.text_offset) == 5
    assert "".join(lists.tokens) == choice.text
    assert lists.text_offset == [len("".join(lists.tokens[:place])) for place in range(5)]
    assert all(
        top[token] == value
        for token, value, top in zip(lists.tokens, lists.token_logprobs, lists.top_logprobs, strict=True)
    )


async def test_parts_of_a_character_have_their_bytes(calling):
    answer = await calling.chat(model="tiny", logprobs=True)
    [choice] = answer.choices
    assert choice.message.content == "a😀b"
    data = [bytes(entry.bytes) for entry in choice.logprobs.content]
    assert b"".join(data) == "a😀b".encode()
    assert [entry.token for entry in choice.logprobs.content][1] == "bytes:\\xf0"
    lists = (await calling.client.completions.create(model="tiny", prompt="x", logprobs=0)).choices[0].logprobs
    assert lists.text_offset == [0, 1, 1, 1, 2]


async def test_reasoning_text_and_calls_come_apart_whole_and_streamed(calling):
    [choice] = (await calling.chat(model="caller", tools=[WEATHER])).choices
    assert choice.message.reasoning_content.strip() == "It is Paris they mean."
    assert choice.message.content.strip() == "I look."
    assert choice.finish_reason == "tool_calls"
    assert [json.loads(call.function.arguments) for call in choice.message.tool_calls] == [{"city": "Paris"}] * 2
    asked = {"model": "caller", "messages": HELLO, "tools": [WEATHER]}
    async with calling.client.chat.completions.stream(**asked) as stream:
        streamed = (await stream.get_final_completion()).choices[0]
    assert streamed.finish_reason == "tool_calls"
    assert streamed.message.content == choice.message.content
    assert [call.function.arguments for call in streamed.message.tool_calls] == [
        call.function.arguments for call in choice.message.tool_calls
    ]
    [one] = (await calling.chat(model="caller", tools=[WEATHER], parallel_tool_calls=False)).choices
    assert len(one.message.tool_calls) == 1
    assert one.finish_reason == "tool_calls"


async def test_what_was_called_and_answered_goes_back_to_the_model(calling):
    [choice] = (await calling.chat(model="caller", tools=[WEATHER])).choices
    calls = choice.message.tool_calls
    told = [
        *HELLO,
        choice.message.model_dump(exclude_none=True),
        *({"role": "tool", "tool_call_id": call.id, "content": "rain"} for call in calls),
    ]
    again = await calling.chat(model="caller", messages=told, tools=[WEATHER])
    assert again.usage.prompt_tokens > 0
    assert len(again.choices[0].message.tool_calls) == 2


async def test_tools_that_are_not_offered_are_not_read(calling):
    for fields in ({}, {"tools": [WEATHER], "tool_choice": "none"}):
        [choice] = (await calling.chat(model="caller", **fields)).choices
        assert choice.message.tool_calls is None
        assert "weather" in choice.message.content
        assert choice.finish_reason == "stop"


async def test_a_model_without_calls_or_efforts_refuses_them(served):
    for fields, param in (({"tools": [WEATHER]}, "tools"), ({"reasoning_effort": "low"}, "reasoning_effort")):
        with pytest.raises(openai.BadRequestError) as refused:
            await served.chat(**fields)
        assert (refused.value.code, refused.value.param) == ("unsupported_capability", param)


async def test_an_answer_goes_on_where_the_last_message_stops(served):
    begun = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "I say"}]
    rest = await served.chat(messages=begun, max_tokens=8, extra_body={"continue_final_message": True})
    prompt = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\nI say"
    written = await served.client.completions.create(model="tiny-cold", prompt=prompt, max_tokens=8)
    assert rest.choices[0].message.content == written.choices[0].text
    assert rest.usage.prompt_tokens == written.usage.prompt_tokens


async def test_no_effort_at_all_is_what_a_model_without_efforts_makes(served):
    assert (await served.chat(reasoning_effort="none", max_tokens=2)).usage == (await served.chat(max_tokens=2)).usage


async def test_an_effort_reaches_a_template_that_knows_thinking(calling):
    lengths = [
        (await calling.chat(model="caller", reasoning_effort=effort)).usage.prompt_tokens for effort in ("none", "high")
    ]
    assert lengths[0] < lengths[1]


FORMS = [
    ({"response_format": {"type": "json_object"}}, lambda text: isinstance(json.loads(text), dict)),
    ({"guided_regex": "[ab]{3}c"}, lambda text: len(text) == 4 and set(text) <= set("abc")),
    ({"guided_choice": ["yes.", "no (never)"]}, lambda text: text in ("yes.", "no (never)")),
    ({"guided_grammar": 'start: "x" "y"'}, lambda text: text == "xy"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": [1, "two"]}}}},
        lambda text: json.loads(text) in (1, "two"),
    ),
]


@pytest.mark.parametrize(
    ("form", "fits"), FORMS, ids=lambda value: next(iter(value), "") if isinstance(value, dict) else ""
)
async def test_an_answer_keeps_to_its_form(served, form, fits):
    fields = {"max_tokens": 300, "temperature": 1, "seed": 3}
    answer = await served.chat(**fields, extra_body=form, n=3)
    for choice in answer.choices:
        if choice.finish_reason == "stop":
            assert fits(choice.message.content), choice.message.content
        else:
            assert form == FORMS[0][0]  # an object has no bound
    text = await served.client.completions.create(model="tiny", prompt="x", **fields, extra_body=form)
    assert text.choices[0].finish_reason == "length" or fits(text.choices[0].text)


@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({"guided_regex": "("}, "guided_regex"),
        ({"guided_json": {"type": "nothing"}}, "guided_json"),
        ({"guided_grammar": "start: x"}, "guided_grammar"),
        ({"structured_outputs": {"regex": "[z-a]"}}, "structured_outputs.regex"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"$ref": "#/x"}}}},
            "response_format",
        ),
    ],
)
async def test_a_form_that_cannot_be_compiled_names_its_field_and_the_reason(served, form, param):
    with pytest.raises(openai.BadRequestError) as refused:
        await served.chat(extra_body=form)
    assert (refused.value.code, refused.value.param) == ("invalid_request", param)
    assert len(refused.value.message) > len(param) + 10
    assert (await served.chat()).usage.completion_tokens == 12


async def test_a_call_that_must_be_made_is_made(calling):
    # what has no bound could run into the token limit, and a call that is cut off is no call
    city = {"city": {"type": "string", "maxLength": 8}}
    parameters = {"type": "object", "properties": city, "required": ["city"], "additionalProperties": False}
    weather = {"type": "function", "function": {"name": "weather", "parameters": parameters}}
    asked = {"model": "caller", "tools": [weather], "parallel_tool_calls": False, "max_tokens": 200}
    named = {"type": "function", "function": {"name": "weather"}}
    for choice in ("required", named):
        answer = await calling.chat(**asked, tool_choice=choice)
        [made] = answer.choices
        assert made.message.tool_calls[0].function.name == "weather"
        assert set(json.loads(made.message.tool_calls[0].function.arguments)) == {"city"}
        assert made.finish_reason == "tool_calls"


async def test_an_answer_is_no_shorter_than_asked_for(calling):
    short = await calling.chat(model="tiny")
    assert (short.choices[0].message.content, short.choices[0].finish_reason) == ("a😀b", "stop")
    longer = await calling.chat(model="tiny", max_tokens=40, extra_body={"min_tokens": 20})
    assert longer.usage.completion_tokens >= 20
    endless = await calling.chat(model="tiny", max_tokens=40, extra_body={"ignore_eos": True})
    assert (endless.usage.completion_tokens, endless.choices[0].finish_reason) == (40, "length")


async def test_xtc_changes_what_a_seed_gives_and_is_as_repeatable(served):
    asked = {"temperature": 1.5, "seed": 5, "max_tokens": 10}
    plain = await served.chat(**asked)
    xtc = [await served.chat(**asked, extra_body={"xtc_probability": 1.0, "xtc_threshold": 0.01}) for _ in range(2)]
    texts = [answer.choices[0].message.content for answer in (plain, *xtc)]
    assert texts[0] != texts[1] == texts[2]
