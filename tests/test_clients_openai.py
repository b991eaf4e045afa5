"""OpenAI's own client against a real daemon."""

import asyncio
import json
from typing import Literal

import httpx
import openai
import pytest
from clients_daemon import ARGUMENTS, CALLED, MESSAGES, NAMES, QUESTION, SAID, TOOL, snippets
from pydantic import BaseModel, ConfigDict

SENTENCE = "".join(SAID)


class Forecast(BaseModel):
    """What `former` answers and `caller` calls with."""

    model_config = ConfigDict(extra="forbid")
    city: str
    days: int


@pytest.fixture
def served(clients_daemon):
    return clients_daemon


@pytest.fixture
def client(served):
    with openai.OpenAI(base_url=served.v1, api_key=served.key, max_retries=0) as client:
        yield client


@pytest.fixture
def admin(served):
    with httpx.Client(base_url=served.url, headers={"Authorization": f"Bearer {served.admin}"}) as admin:
        yield admin


def test_a_chat_is_answered_whole_and_in_pieces(client):
    whole = client.chat.completions.create(model="gpt-4o", messages=MESSAGES)
    assert (whole.model, whole.choices[0].message.content, whole.choices[0].finish_reason) == (
        "gpt-4o",
        SENTENCE,
        "stop",
    )
    options = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(client.chat.completions.create(model="gpt-4o", messages=MESSAGES, **options))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == SENTENCE
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == len(SAID) + 1
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens


def test_a_completion_is_answered_with_logprobs(client):
    told = client.completions.create(model="speaker", prompt=QUESTION, logprobs=1)
    assert told.choices[0].text == SENTENCE
    assert told.choices[0].logprobs.tokens[: len(SAID)] == SAID


def test_models_are_listed_and_found(client):
    assert {model.id for model in client.models.list()} == NAMES
    assert client.models.retrieve("gpt-4o").root == "speaker"


def test_reasoning_comes_beside_the_text(client):
    message = client.chat.completions.create(model="thinker", messages=MESSAGES).choices[0].message
    assert (message.content, message.reasoning_content) == (SENTENCE, "They mean Paris.")


def test_the_streaming_helper_puts_a_call_together(client):
    tools = [openai.pydantic_function_tool(Forecast, name="get_weather")]
    with client.chat.completions.stream(model="caller", messages=MESSAGES, tools=tools) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
        [call] = stream.get_final_completion().choices[0].message.tool_calls
    assert [(event.name, event.parsed_arguments) for event in done] == [("get_weather", Forecast(**ARGUMENTS))]
    assert (call.function.name, call.function.parsed_arguments) == ("get_weather", Forecast(**ARGUMENTS))
    assert stream.get_final_completion().choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_call_is_made_and_its_result_goes_back(client, choice):
    asked = client.chat.completions.create(model="caller", messages=MESSAGES, tools=[TOOL], tool_choice=choice)
    [call] = asked.choices[0].message.tool_calls
    assert (asked.choices[0].finish_reason, json.loads(call.function.arguments)) == ("tool_calls", ARGUMENTS)
    history = [*MESSAGES, asked.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "Sunny."}]
    again = client.chat.completions.create(model="thinker", messages=history, tools=[TOOL])
    assert again.choices[0].message.content == SENTENCE


def test_a_history_of_calls_may_be_of_another_daemon(client):
    told = client.chat.completions.create(model="thinker", messages=CALLED, tools=[TOOL])
    assert told.choices[0].message.content == SENTENCE


def test_an_answer_is_parsed_into_a_type(client):
    told = client.chat.completions.parse(model="former", messages=MESSAGES, response_format=Forecast)
    assert told.choices[0].message.parsed == Forecast(**ARGUMENTS)
    with client.chat.completions.stream(model="former", messages=MESSAGES, response_format=Forecast) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == Forecast(**ARGUMENTS)


def test_a_form_that_the_model_would_not_take_by_itself_is_kept_to(client):
    class Verdict(BaseModel):
        answer: Literal["yes", "no"]

    told = client.chat.completions.parse(model="speaker", messages=MESSAGES, response_format=Verdict)
    assert told.choices[0].message.parsed.answer in ("yes", "no")


def test_an_answer_that_is_cut_off_is_told_by_the_clients_own_error(client):
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(model="former", messages=MESSAGES, response_format=Forecast, max_tokens=2)


async def test_many_requests_of_an_async_client_are_answered_at_once(served):
    async with openai.AsyncOpenAI(base_url=served.v1, api_key=served.key, max_retries=0) as client:
        asked = [client.chat.completions.create(model="speaker", messages=MESSAGES) for _ in range(20)]
        assert {answer.choices[0].message.content for answer in await asyncio.gather(*asked)} == {SENTENCE}


@pytest.mark.parametrize(
    ("wanted", "shown", "fields"),
    [
        (openai.NotFoundError, (404, "model_not_found", "model"), {"model": "speakr"}),
        (openai.BadRequestError, (400, "invalid_request", "temperature"), {"temperature": 3}),
        (openai.BadRequestError, (400, "invalid_request", "messages"), {"messages": []}),
        (openai.BadRequestError, (400, "context_length_exceeded", "messages"), {"max_tokens": 10**6}),
        (openai.BadRequestError, (400, "unsupported_capability", "tools"), {"tools": [TOOL]}),
        (openai.InternalServerError, (503, "model_wait_timeout", None), {"extra_headers": {"X-Mlxd-Max-Wait": "0"}}),
    ],
    ids=["name", "value", "empty", "length", "tools", "wait"],
)
def test_what_goes_wrong_is_a_class_of_error_of_the_client(served, admin, wanted, shown, fields):
    assert admin.post("/models/unload", json={"model": "speaker"}).json() == {"success": True}
    with openai.OpenAI(base_url=served.v1, api_key=served.key, max_retries=0) as client:
        for stream in (False, True):
            with pytest.raises(wanted) as raised:
                client.chat.completions.create(**{"model": "speaker", "messages": MESSAGES, "stream": stream, **fields})
            assert (raised.value.status_code, raised.value.code, raised.value.param) == shown
            assert raised.value.request_id == raised.value.response.headers["X-Request-Id"]


def test_a_wrong_key_and_a_narrow_one_are_told_apart(client, served):
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=served.v1, api_key="sk-wrong", max_retries=0).models.list()
    with pytest.raises(openai.PermissionDeniedError):
        client.post(f"{served.url}/models/load", body={"model": "former"}, cast_to=object)


async def test_a_queue_that_is_full_is_a_rate_limit(served, admin):
    def waiting():
        return [request for request in admin.get("/admin/requests").json()["data"] if request["state"] == "waiting"]

    async with openai.AsyncOpenAI(base_url=served.v1, api_key=served.key, max_retries=0) as client:

        async def ask():
            return await client.chat.completions.create(model="busy", messages=MESSAGES, stream=True)

        first = await ask()
        await anext(first)
        second = asyncio.create_task(ask())
        async with asyncio.timeout(10):
            while not await asyncio.to_thread(waiting):
                pass
        with pytest.raises(openai.RateLimitError) as raised:
            await ask()
        assert raised.value.code == "queue_full"
        assert int(raised.value.response.headers["Retry-After"]) >= 1
        await first.close()
        second.cancel()


def test_a_client_that_waits_no_longer_ends_its_request(client, admin):
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.2).chat.completions.create(model="busy", messages=MESSAGES)
    assert admin.post("/models/unload", json={"model": "busy"}, timeout=5).json() == {"success": True}
    assert admin.get("/admin/requests").json() == {"data": []}


def test_texts_are_embedded(client):
    made = client.embeddings.create(model="text-embedding-3-small", input=["one", "two", "one"])
    assert [each.index for each in made.data] == [0, 1, 2]
    one, two, again = (each.embedding for each in made.data)
    assert one == pytest.approx(again, abs=1e-5)
    assert one != pytest.approx(two, abs=1e-3)
    plain = client.embeddings.create(model="embedder", input="one", encoding_format="float")
    assert plain.data[0].embedding == pytest.approx(one, abs=1e-5)


@pytest.mark.parametrize("model", ["speaker", "caller"])
def test_a_model_of_text_makes_no_embeddings(client, model):
    with pytest.raises(openai.BadRequestError) as raised:
        client.embeddings.create(model=model, input="hi")
    assert raised.value.code == "unsupported_capability"


def test_a_model_that_is_ejected_in_the_middle_of_a_stream_ends_it_first(client, admin):
    def status():
        return {model.id: model.status["value"] for model in client.models.list()}["busy"]

    stream = client.chat.completions.create(model="busy", messages=MESSAGES, stream=True, max_tokens=300)
    next(stream)
    assert status() == "loaded"
    assert admin.post("/models/unload", json={"model": "busy"}, timeout=30).json() == {"success": True}
    assert [chunk.choices[0].finish_reason for chunk in stream][-1] == "length"
    assert status() == "unloaded"


def test_the_snippet_of_the_document_prints_an_answer(served, capsys):
    names = {}
    [text] = snippets(served, "OpenAI's own clients", "python")
    exec(text, names)
    assert capsys.readouterr().out == f"{SENTENCE}\n"


def test_the_snippet_of_the_page_of_the_api_streams_an_answer(served, capsys):
    [text] = snippets(served, "Requests", "python", "api")
    exec(text, {})
    assert capsys.readouterr().out == SENTENCE


def test_the_snippet_of_the_page_of_routers_loads_counts_and_unloads(served, capsys):
    [text] = snippets(served, "llama.cpp", "python", "api-routers", served.admin)
    exec(text, {})
    loaded, count, unloaded, state = capsys.readouterr().out.splitlines()
    assert loaded == unloaded == "{'success': True}"
    assert int(count) > 0
    assert state == "unloaded"
