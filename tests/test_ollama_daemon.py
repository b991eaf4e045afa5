"""The ollama package against a real daemon with real models."""

import json
import re
import subprocess
import sys
import urllib.request

import ollama
import pytest
from api_calls import until
from clients_daemon import ARGUMENTS, FORECAST, MESSAGES, QUESTION, SAID, SCHEMA, THOUGHT, TOOL
from daemon_process import Api
from doc_pages import blocks, page
from test_api_daemon import running

SENTENCE = "".join(SAID)
REASONING = "They mean Paris."


@pytest.fixture
def daemon(clients_daemon):
    return clients_daemon


@pytest.fixture
def client(daemon):
    with ollama.Client(host=daemon.url, headers={"Authorization": f"Bearer {daemon.admin}"}) as client:
        yield client


@pytest.fixture
async def api(daemon):
    async with Api(daemon.url) as api:
        api._session.headers["Authorization"] = f"Bearer {daemon.admin}"
        yield api


async def state(api, model):
    return (await api.get(f"/admin/models/{model}"))["state"]


def test_chats_and_prompts_are_answered_whole_and_streamed(client):
    whole = client.chat("speaker", MESSAGES)
    assert (whole.message.content, whole.done_reason) == (SENTENCE, "stop")
    parts = list(client.chat("gpt-4o", MESSAGES, stream=True))
    assert "".join(part.message.content for part in parts) == SENTENCE
    assert (parts[-1].model, parts[-1].done) == ("gpt-4o", True)
    assert (parts[-1].prompt_eval_count, parts[-1].eval_count) == (whole.prompt_eval_count, whole.eval_count)
    assert whole.eval_count == len(SAID) + 1
    text = client.generate("speaker", QUESTION)
    assert (text.response, text.prompt_eval_count) == (SENTENCE, whole.prompt_eval_count)
    assert "".join(part.response for part in client.generate("speaker", QUESTION, stream=True)) == SENTENCE
    raw = client.generate("speaker", "Once", raw=True)
    assert raw.response == SENTENCE
    assert raw.prompt_eval_count < text.prompt_eval_count


async def test_the_asynchronous_client_streams(daemon):
    async with ollama.AsyncClient(host=daemon.url, headers={"Authorization": f"Bearer {daemon.key}"}) as client:
        stream = await client.chat("speaker", MESSAGES, stream=True)
        assert "".join([part.message.content async for part in stream]) == SENTENCE
        assert (await client.generate("speaker", QUESTION)).response == SENTENCE


def test_durations_add_up(client):
    answer = client.chat("busy", MESSAGES, options={"num_predict": 20})
    assert (answer.done_reason, answer.eval_count) == ("length", 20)
    assert answer.prompt_eval_duration > 0
    assert answer.eval_duration > 0
    parts = answer.load_duration + answer.prompt_eval_duration + answer.eval_duration
    assert 0 < parts <= answer.total_duration * 1.01


def test_reasoning_is_thinking(client):
    answer = client.chat("thinker", MESSAGES, think=True)
    assert (answer.message.thinking.strip(), answer.message.content.strip()) == (REASONING, SENTENCE)
    parts = list(client.generate("thinker", QUESTION, think="low", stream=True))
    assert "".join(part.thinking or "" for part in parts).strip() == REASONING
    assert "".join(part.response for part in parts).strip() == SENTENCE
    assert THOUGHT[0] in client.chat("thinker", MESSAGES, think=False).message.content


def test_tool_calls_and_their_results_go_back_and_forth(client):
    answer = client.chat("caller", MESSAGES, tools=[TOOL])
    [call] = answer.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("get_weather", ARGUMENTS)
    streamed = [part.message.tool_calls for part in client.chat("caller", MESSAGES, tools=[TOOL], stream=True)]
    assert [calls[0].function.arguments for calls in streamed if calls] == [ARGUMENTS]
    result = {"role": "tool", "content": "Sunny.", "tool_name": "get_weather"}
    assert client.chat("caller", [*MESSAGES, answer.message, result], tools=[TOOL]).done


def test_a_format_is_kept_to(client):
    answer = client.chat("former", MESSAGES, format=SCHEMA)
    assert json.loads(answer.message.content) == json.loads("".join(FORECAST))
    assert json.loads(client.generate("former", QUESTION, format="json").response) == ARGUMENTS
    number = client.generate("speaker", QUESTION, format={"type": "integer"}, options={"num_predict": 5})
    assert re.fullmatch(r"-?\d+", number.response)


async def test_keep_alive_loads_keeps_expires_and_unloads(client, api):
    [*_, last] = (await api.get("/admin/decisions"))["data"]
    assert client.generate("thinker", "").done_reason == "load"
    assert await state(api, "thinker") == "ready"
    assert client.chat("thinker", []).done_reason == "load"

    client.generate("thinker", QUESTION, keep_alive=-1)
    assert (await api.get("/admin/models/thinker"))["ttl_s"] is None
    client.generate("thinker", QUESTION, keep_alive="5m")
    assert (await api.get("/admin/models/thinker"))["ttl_s"] == 300.0
    client.generate("thinker", QUESTION)
    assert (await api.get("/admin/models/thinker"))["ttl_s"] == 300.0

    assert client.generate("thinker", keep_alive=0).done_reason == "unload"
    model = await api.get("/admin/models/thinker")
    assert (model["state"], model["ttl_s"]) == ("unloaded", None)

    list(client.chat("thinker", MESSAGES, keep_alive=0, stream=True))
    await api.until("/admin/models/thinker", lambda model: model["state"] == "unloaded")
    client.chat("thinker", MESSAGES, keep_alive=0.05)
    await api.until("/admin/models/thinker", lambda model: model["state"] == "unloaded")
    taken = [each for each in (await api.get("/admin/decisions"))["data"] if each["seq"] > last["seq"]]
    left = [each["kind"] for each in taken if each["model"] == "thinker" and each["kind"] != "load"]
    assert left == ["drain", "unload", "expire", "expire"]


async def test_keep_alive_zero_spares_the_requests_of_others(models_dir, tiny_model):
    async with running(models_dir({"tiny": tiny_model})) as served:
        registry = served.daemon.registry
        async with ollama.AsyncClient(host=f"http://127.0.0.1:{served.port}") as client:
            stream = await client.chat("tiny", MESSAGES, stream=True, keep_alive=-1)
            await anext(stream)
            short = await client.chat("tiny", MESSAGES, options={"num_predict": 1}, keep_alive=0)
            assert (short.done_reason, registry.model("tiny").state) == ("length", "ready")
            assert await anext(part.message.content async for part in stream if part.message.content)
            await stream.aclose()
        await until(lambda: registry.model("tiny").state == "unloaded")


async def test_a_pinned_model_is_kept_until_it_is_unloaded(client, api):
    await api.call("PATCH", "/admin/models/speaker", {"pinned": True})
    client.chat("speaker", MESSAGES, keep_alive=0)
    assert await state(api, "speaker") == "ready"
    [shown] = [model for model in client.ps().models if model.name == "speaker"]
    assert shown.expires_at.year == 9999
    assert client.generate("speaker", keep_alive=0).done_reason == "unload"
    assert await state(api, "speaker") == "unloaded"
    await api.call("PATCH", "/admin/models/speaker", {"pinned": False})


async def test_listing_and_showing_load_nothing(client, api):
    before = await api.states()
    names = [model.model for model in client.list().models]
    assert {"busy", "caller", "former", "speaker", "thinker", "gpt-4o"} <= set(names)
    shown = {name: client.show(name) for name in names}
    assert shown["caller"].capabilities == ["completion", "tools", "thinking"]
    assert shown["speaker"].capabilities == ["completion"]
    assert shown["speaker"].modelinfo["llama.context_length"] == 32768
    assert all(model.details.parameter_size for model in client.list().models)
    client.chat("speaker", MESSAGES)
    loaded = {model.name: model for model in client.ps().models}
    assert loaded["speaker"].size > 0
    assert loaded["speaker"].context_length == 32768
    assert {name for name, now in (await api.states()).items() if now == "ready"} == loaded.keys()
    assert {name for name, now in before.items() if now == "ready"} | {"speaker"} == loaded.keys()


def test_errors_have_their_status(client, daemon):
    for model, status in (("nothing", 404), ("", 400)):
        with pytest.raises((ollama.ResponseError, ollama.RequestError, ValueError)) as failed:
            client.chat(model, MESSAGES)
        assert getattr(failed.value, "status_code", 400) == status
    with pytest.raises(ollama.ResponseError) as failed:
        client.chat("speaker", MESSAGES, tools=[TOOL])
    assert failed.value.status_code == 400
    with pytest.raises(ollama.ResponseError) as failed:
        list(client.chat("speaker", MESSAGES, stream=True, options={"num_predict": 10**6}))
    assert failed.value.status_code == 400
    with pytest.raises(ollama.ResponseError) as failed:
        client.pull("qwen")
    assert failed.value.status_code == 404
    with ollama.Client(host=daemon.url) as stranger, pytest.raises(ollama.ResponseError) as failed:
        stranger.list()
    assert failed.value.status_code == 401


async def test_a_cancelled_request_keeps_what_it_has(client, api):
    headers = {**client._client.headers, "x-request-id": "r-9"}
    with ollama.Client(host=str(client._client.base_url), headers=headers) as named:
        stream = named.chat("busy", MESSAGES, stream=True)
        first = next(stream)
        assert (await api.call("DELETE", "/v1/requests/r-9"))[0] == 200
        *_, end = stream
    assert first.message.content
    assert (end.done, end.done_reason) == (True, "stop")


def test_the_snippet_of_the_document_runs(daemon):
    [(_, snippet)] = blocks(page("api-ollama"), "python")
    snippet = snippet.replace("http://127.0.0.1:8484", daemon.url).replace('"qwen"', '"speaker"')
    run = subprocess.run(
        [sys.executable, "-c", snippet],
        env={"OLLAMA_API_KEY": daemon.admin},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert SENTENCE in run.stdout


def test_curl_gets_lines(daemon):
    body = json.dumps({"model": "speaker", "prompt": QUESTION}).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {daemon.key}"}
    request = urllib.request.Request(f"{daemon.url}/api/generate", body, headers)
    with urllib.request.urlopen(request) as answer:
        lines = [json.loads(line) for line in answer.read().decode().splitlines()]
    assert "".join(line["response"] for line in lines) == SENTENCE
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
