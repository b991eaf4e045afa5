"""LiteLLM against a real daemon."""

import json
import os

import httpx
import pytest
import yaml
from clients_daemon import ARGUMENTS, CALLED, MESSAGES, QUESTION, SAID, TOOL, snippets
from pydantic import BaseModel

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else its import asks the network for prices

import litellm

SENTENCE = "".join(SAID)


class Forecast(BaseModel):
    """What `former` answers."""

    city: str
    days: int


@pytest.fixture
def served(clients_daemon):
    return clients_daemon


@pytest.fixture
def complete(served):
    def complete(name, **fields):
        at = {"model": f"openai/{name}", "api_base": served.v1, "api_key": served.key, "num_retries": 0}
        return litellm.completion(**{**at, "max_retries": 0, "messages": MESSAGES, **fields})

    return complete


def test_a_chat_is_answered_whole_and_in_pieces(complete):
    whole = complete("speaker")
    assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == (SENTENCE, "stop")
    assert whole.usage.completion_tokens == len(SAID) + 1
    chunks = list(complete("speaker", stream=True, stream_options={"include_usage": True}))
    built = litellm.stream_chunk_builder(chunks, messages=MESSAGES)
    assert (built.choices[0].message.content, built.usage.completion_tokens) == (SENTENCE, len(SAID) + 1)


async def test_an_async_chat_is_answered(served):
    answer = await litellm.acompletion(
        model="openai/gpt-4o", api_base=served.v1, api_key=served.key, messages=MESSAGES, max_retries=0
    )
    assert answer.choices[0].message.content == SENTENCE


def test_a_completion_goes_on_from_text(served):
    answer = litellm.text_completion(
        model="text-completion-openai/speaker", api_base=served.v1, api_key=served.key, prompt=QUESTION, max_retries=0
    )
    assert answer.choices[0].text == SENTENCE


def test_reasoning_comes_beside_the_text(complete):
    message = complete("thinker").choices[0].message
    assert (message.content, message.reasoning_content) == (SENTENCE, "They mean Paris.")


def test_a_call_is_made_and_its_result_goes_back(complete):
    asked = complete("caller", tools=[TOOL], tool_choice="auto")
    [call] = asked.choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", ARGUMENTS)
    assert asked.choices[0].finish_reason == "tool_calls"
    history = [*MESSAGES, asked.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "Sunny."}]
    assert complete("thinker", messages=history, tools=[TOOL]).choices[0].message.content == SENTENCE
    assert complete("thinker", messages=CALLED, tools=[TOOL]).choices[0].message.content == SENTENCE


def test_a_streamed_call_is_put_together(complete):
    chunks = list(complete("caller", tools=[TOOL], stream=True))
    [call] = litellm.stream_chunk_builder(chunks).choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", ARGUMENTS)


def test_an_answer_is_a_type(complete):
    answer = complete("former", response_format=Forecast)
    assert Forecast.model_validate_json(answer.choices[0].message.content) == Forecast(**ARGUMENTS)


def test_texts_are_embedded(served):
    made = litellm.embedding(
        model="openai/embedder", api_base=served.v1, api_key=served.key, input=["one", "two", "one"], max_retries=0
    )
    one, two, again = (each["embedding"] for each in made.data)
    assert one == pytest.approx(again, abs=1e-5)
    assert one != pytest.approx(two, abs=1e-3)


@pytest.fixture(params=["anthropic", "ollama_chat"])
def foreign(request, served):
    def complete(name, **fields):
        at = {"model": f"{request.param}/{name}", "api_base": served.url, "api_key": served.key, "max_retries": 0}
        return litellm.completion(**{**at, "messages": MESSAGES, "max_tokens": 64, **fields})

    return complete


def test_a_chat_is_answered_over_the_other_apis(foreign):
    whole = foreign("speaker")
    assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == (SENTENCE, "stop")
    assert whole.usage.completion_tokens == len(SAID) + 1
    chunks = list(foreign("speaker", stream=True))
    assert litellm.stream_chunk_builder(chunks, messages=MESSAGES).choices[0].message.content == SENTENCE


def test_a_call_is_made_over_the_other_apis(foreign):
    [call] = foreign("caller", tools=[TOOL]).choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", ARGUMENTS)
    [streamed] = (
        litellm.stream_chunk_builder(list(foreign("caller", tools=[TOOL], stream=True))).choices[0].message.tool_calls
    )
    assert (streamed.function.name, json.loads(streamed.function.arguments)) == ("get_weather", ARGUMENTS)


def test_what_goes_wrong_over_the_other_apis_is_a_class_of_error_of_the_client(foreign):
    with pytest.raises((litellm.NotFoundError, litellm.APIConnectionError)) as raised:
        foreign("speakr")
    assert "speaker" in str(raised.value)


@pytest.mark.parametrize(
    ("wanted", "fields"),
    [
        (litellm.NotFoundError, {"model": "openai/speakr"}),
        (litellm.BadRequestError, {"temperature": 3}),
        (litellm.ContextWindowExceededError, {"max_tokens": 10**6}),
        (litellm.AuthenticationError, {"api_key": "wrong"}),
        (litellm.Timeout, {"model": "openai/busy", "timeout": 0.2}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_goes_wrong_is_a_class_of_error_of_the_client(complete, wanted, fields):
    with pytest.raises(wanted):
        complete("speaker", **fields)
    if "timeout" not in fields:
        with pytest.raises(wanted):
            list(complete("speaker", stream=True, **fields))


def test_a_model_that_is_not_there_in_time_is_unavailable(complete, served):
    headers = {"Authorization": f"Bearer {served.admin}"}
    unloaded = httpx.post(f"{served.url}/models/unload", json={"model": "speaker"}, headers=headers)
    assert unloaded.json() == {"success": True}
    with pytest.raises(litellm.ServiceUnavailableError):
        complete("speaker", extra_headers={"X-Mlxd-Max-Wait": "0"})


def test_the_snippet_of_the_document_prints_an_answer(served, capsys):
    names = {}
    [text] = snippets(served, "LiteLLM", "python")
    exec(text, names)
    assert capsys.readouterr().out == f"{SENTENCE}\n"


def test_the_configuration_of_the_document_reaches_a_model(served):
    [text] = snippets(served, "LiteLLM", "yaml")
    router = litellm.Router(**yaml.safe_load(text))
    assert router.completion("qwen", messages=MESSAGES).choices[0].message.content == SENTENCE
