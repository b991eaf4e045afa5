"""The Responses API of a real daemon with real models, as the openai package uses it."""

import json
from typing import Literal

import openai
import pytest
from daemon_process import daemon
from doc_pages import blocks, page
from openai.types.responses import Response
from pydantic import BaseModel
from tiny_models import ANSWER_MARKERS, TOOL_TEMPLATE, build_reciting_model

LONG = "Tell me of the sea, and of ships that cross it in the night. " * 12
THOUGHT = ["They", " mean", " Paris", ".", "</think>", "\n\n"]
CALL = ["<tool_call>", '\n{"name": "get_weather"', ', "arguments": {"city":', ' "Paris"}', "}\n", "</tool_call>"]
TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}
THINK = {"effort": "low"}


class Verdict(BaseModel):
    """A form that random weights come to the end of."""

    answer: Literal["yes", "no"]
    sure: bool


@pytest.fixture(scope="module")
def served(tmp_path_factory, tiny_model):
    folder = tmp_path_factory.mktemp("responses")
    models, added = folder / "models", ANSWER_MARKERS
    build_reciting_model(models / "qwen", ["Lyon", "."])
    build_reciting_model(models / "thinker", [*THOUGHT, "I", " look", "."], template=TOOL_TEMPLATE, added=added)
    build_reciting_model(models / "caller", [*THOUGHT, "I", " look", ".", *CALL], template=TOOL_TEMPLATE, added=added)
    (models / "tiny").symlink_to(tiny_model)
    with daemon(folder / "state", models) as running:
        yield running


@pytest.fixture
def client(served):
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


def said(text):
    return {"role": "user", "content": text}


def test_turns_that_go_on_are_the_same_conversation_sent_whole(client):
    asked = {"model": "tiny", "temperature": 0, "max_output_tokens": 12}
    first = client.responses.create(input=LONG, instructions="Be brief.", **asked)
    second = client.responses.create(
        input="And then?", previous_response_id=first.id, instructions="Be brief.", **asked
    )
    whole = client.responses.create(
        input=[said(LONG), *first.output, said("And then?")], instructions="Be brief.", store=False, **asked
    )
    answered = {"role": "assistant", "content": first.output_text}
    messages = [{"role": "system", "content": "Be brief."}, said(LONG), answered, said("And then?")]
    chat = client.chat.completions.create(model="tiny", messages=messages, temperature=0, max_tokens=12)
    assert (first.status, first.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert first.output_text
    assert second.output_text == whole.output_text == chat.choices[0].message.content
    assert second.usage.input_tokens == whole.usage.input_tokens == chat.usage.prompt_tokens
    assert second.usage.output_tokens == 12
    assert first.usage.input_tokens_details.cached_tokens == 0
    assert second.usage.input_tokens_details.cached_tokens > first.usage.input_tokens // 2
    counted = client.responses.input_tokens.count(
        model="tiny", input="And then?", previous_response_id=first.id, instructions="Be brief."
    )
    assert counted.input_tokens == second.usage.input_tokens
    Response.model_validate(second.model_dump(), strict=True)


def test_what_is_streamed_is_what_is_answered_whole(client):
    asked = {"model": "caller", "input": "Weather?", "tools": [TOOL], "temperature": 0, "reasoning": THINK}
    whole = client.responses.create(**asked)
    with client.responses.stream(**asked) as stream:
        events = list(stream)
        final = stream.get_final_response()
    shapes = [[(item.type, item.status) for item in response.output] for response in (whole, final)]
    assert shapes[0] == shapes[1] == [(kind, "completed") for kind in ("reasoning", "message", "function_call")]
    assert whole.output_text == final.output_text == "I look."
    assert whole.output[0].content[0].text == final.output[0].content[0].text == "They mean Paris."
    assert json.loads(whole.output[2].arguments) == json.loads(final.output[2].arguments) == {"city": "Paris"}
    assert whole.usage.output_tokens == final.usage.output_tokens
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == "I look."


@pytest.mark.parametrize("kept", [True, False])
def test_the_result_of_a_call_goes_back_to_the_model(client, kept):
    asked = {"model": "caller", "tools": [TOOL], "reasoning": THINK}
    first = client.responses.create(input="Weather?", store=kept, **asked)
    call = first.output[-1]
    assert (call.type, call.name) == ("function_call", "get_weather")
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny."}
    if kept:
        second = client.responses.create(previous_response_id=first.id, input=[result], **asked)
        listed = list(client.responses.input_items.list(second.id, order="asc"))
        assert [item.type for item in listed] == ["message", *(item.type for item in first.output), result["type"]]
    else:
        second = client.responses.create(input=[said("Weather?"), *first.output, result], **asked)
    call = {"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
    messages = [
        said("Weather?"),
        {"role": "assistant", "content": first.output_text, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "Sunny."},
    ]
    function = {name: TOOL[name] for name in ("name", "description", "parameters")}
    chat = client.chat.completions.create(
        model="caller", messages=messages, tools=[{"type": "function", "function": function}], reasoning_effort="low"
    )
    assert second.usage.input_tokens == chat.usage.prompt_tokens
    assert second.output_text == chat.choices[0].message.content


def test_a_model_that_must_call_calls_what_it_is_told_to(client):
    other = {**TOOL, "name": "get_time"}
    for choice in ("required", {"type": "function", "name": "get_weather"}, allowed("required", "get_weather")):
        response = client.responses.create(
            model="caller", input="Go", tools=[other, TOOL], tool_choice=choice, parallel_tool_calls=False
        )
        thought, call = response.output
        assert thought.content[0].text == "They mean Paris."
        assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "get_weather", {"city": "Paris"})


def allowed(mode, *names):
    return {"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": name} for name in names]}


def test_an_answer_with_a_form_is_parsed(client):
    for options in ({"model": "tiny"}, {"model": "thinker", "reasoning": THINK}):
        parsed = client.responses.parse(input="Is it?", text_format=Verdict, max_output_tokens=200, **options)
        assert isinstance(parsed.output_parsed, Verdict)
        assert parsed.status == "completed"
        with client.responses.stream(input="Is it?", text_format=Verdict, **options) as stream:
            assert isinstance(stream.get_final_response().output_parsed, Verdict)
    assert parsed.output[0].type == "reasoning"
    assert parsed.output[0].content[0].text == "They mean Paris."


def test_reasoning_is_there_when_it_is_asked_for(client):
    thought = client.responses.create(model="thinker", input="Where?", reasoning=THINK)
    cut = client.responses.create(model="thinker", input="Where?", reasoning=THINK, max_output_tokens=2)
    assert [item.type for item in thought.output] == ["reasoning", "message"]
    assert (cut.status, [(item.type, item.status) for item in cut.output]) == (
        "incomplete",
        [("reasoning", "incomplete")],
    )
    on = client.responses.create(model="thinker", input="And?", previous_response_id=cut.id)
    assert on.status == "completed"


def test_a_long_answer_is_ended_by_its_id_and_its_stream_ends_with_what_there_was(client):
    with client.responses.stream(model="tiny", input="Go on", temperature=0) as stream:
        for event in stream:
            if event.type == "response.created":
                name = event.response.id
            if event.type == "response.output_text.delta" and len(event.snapshot) > 20:
                cancelled = client.responses.cancel(name)
                break
        for _ in stream:
            pass
        final = stream.get_final_response()
    assert final.status == cancelled.status == "cancelled"
    assert final.output_text == client.responses.retrieve(name).output_text
    assert len(final.output_text) > 20
    assert final.mlxd["cancelled"] is True


def test_logprobs_come_with_the_text(client):
    response = client.responses.create(
        model="qwen", input="Name a city.", include=["message.output_text.logprobs"], top_logprobs=2
    )
    logprobs = response.output[0].content[0].logprobs
    assert [entry.token for entry in logprobs[:2]] == ["Lyon", "."]
    assert all(len(entry.top_logprobs) == 2 for entry in logprobs)


def test_a_form_that_cannot_be_compiled_is_refused_by_its_field(client):
    form = {"type": "json_schema", "name": "n", "schema": {"type": "nonsense"}}
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model="tiny", input="x", text={"format": form})
    assert refused.value.param == "text.format"


def test_the_document_s_example_runs(served, capsys):
    [code] = [text for _, text in blocks(page("api-responses"), "python")]
    exec(compile(code.replace("http://127.0.0.1:8484", served.url), "api-responses.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Lyon."
    assert lines[1].split()[0] == "Lyon."
    assert int(lines[1].split()[1]) >= 0
    assert lines[2] == "Lyon."
