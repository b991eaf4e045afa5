"""What Ollama clients may not send: each is refused with the field at fault, and nothing reaches an engine."""

import json

import aiohttp
import pytest
from answer_models import WEATHER
from api_calls import ask, by_hand
from api_fakes import serving
from hostile import NOT_JSON
from ollama_calls import CHAT, GENERATE, USER, Residency, chat, generate

from mlxd.engines.guidance import MAX_GUIDE_CHARS

SHOW = "/api/show"
EMBED = "/api/embed"
EMBEDDINGS = "/api/embeddings"
CALL = {"function": {"name": "f", "arguments": {}}}


def option(name, value):
    return chat(options={name: value})


def embed(**fields):
    return {"model": "org/embed", "input": "hi", **fields}


def message(**fields):
    return chat(messages=[{"role": "user", "content": "hi", **fields}])


BAD_CHATS = [
    (chat(model=1), "model"),
    (chat(model=["m"]), "model"),
    (chat(model=""), "model"),
    ({"messages": [USER]}, "model"),
    (chat(stream="yes"), "stream"),
    (chat(stream=1), "stream"),
    (chat(messages="hi"), "messages"),
    (chat(messages={"role": "user"}), "messages"),
    (chat(messages=["hi"]), "messages[0]"),
    (chat(messages=[USER, None]), "messages[1]"),
    (chat(messages=[{}]), "messages[0].role"),
    (chat(messages=[{"content": "hi"}]), "messages[0].role"),
    (message(role="robot"), "messages[0].role"),
    (message(role=None), "messages[0].role"),
    (message(content=1), "messages[0].content"),
    (message(content=[{"type": "text", "text": "hi"}]), "messages[0].content"),
    (message(images="x"), "messages[0].images"),
    (message(images=[1]), "messages[0].images[0]"),
    (message(images=["aGk="]), "messages[0].images[0]"),
    (message(role="system", images=["aGk="]), "messages[0].images"),
    (message(role="assistant", images=["aGk="]), "messages[0].images"),
    (message(thinking="Hm."), "messages[0].thinking"),
    (message(thinking=True), "messages[0].thinking"),
    (message(tool_calls=[CALL]), "messages[0].tool_calls"),
    (message(role="tool", tool_calls=[CALL]), "messages[0].tool_calls"),
    (message(role="assistant", tool_calls={}), "messages[0].tool_calls"),
    (message(role="assistant", tool_calls=[{}]), "messages[0].tool_calls[0].function"),
    (message(role="assistant", tool_calls=[{"function": {}}]), "messages[0].tool_calls[0].function.name"),
    (message(role="assistant", tool_calls=[{"function": {"name": ""}}]), "messages[0].tool_calls[0].function.name"),
    (
        message(role="assistant", tool_calls=[{"function": {"name": "f", "arguments": "{}"}}]),
        "messages[0].tool_calls[0].function.arguments",
    ),
    (message(role="assistant", tool_calls=[{"id": 1, **CALL}]), "messages[0].tool_calls[0].id"),
    (message(role="tool", tool_name=1), "messages[0].tool_name"),
    (message(role="tool", tool_call_id=[]), "messages[0].tool_call_id"),
    (chat(tools="x"), "tools"),
    (chat(tools={}), "tools"),
    (chat(tools=["f"]), "tools[0]"),
    (chat(tools=[{}]), "tools[0].function"),
    (chat(tools=[{"type": "function"}]), "tools[0].function"),
    (chat(tools=[{"type": "web", "function": {"name": "f"}}]), "tools[0].type"),
    (chat(tools=[{"function": {"name": ""}}]), "tools[0].function.name"),
    (chat(tools=[{"function": {"name": "f" * 129}}]), "tools[0].function.name"),
    (chat(tools=[{"function": {"name": "f", "parameters": "x"}}]), "tools[0].function.parameters"),
    (chat(tools=[WEATHER, WEATHER]), "tools[1].function.name"),
    (chat(tools=[WEATHER] * 513), "tools"),
    (chat(format="xml"), "format"),
    (chat(format=1), "format"),
    (chat(format=["json"]), "format"),
    (chat(format={"type": "string", "pattern": "x" * MAX_GUIDE_CHARS}), "format"),
    (chat(think="a lot"), "think"),
    (chat(think=1), "think"),
    (chat(think=""), "think"),
    (chat(keep_alive="soon"), "keep_alive"),
    (chat(keep_alive=True), "keep_alive"),
    (chat(keep_alive=[5]), "keep_alive"),
    (chat(keep_alive={}), "keep_alive"),
    (chat(logprobs=1), "logprobs"),
    (chat(logprobs=True, top_logprobs=21), "top_logprobs"),
    (chat(logprobs=True, top_logprobs=-1), "top_logprobs"),
    (chat(top_logprobs=3), "top_logprobs"),
    (chat(truncate=True), "truncate"),
    (chat(truncate=0), "truncate"),
    (chat(shift=True), "shift"),
    (chat(_debug_render_only=True), "_debug_render_only"),
    (chat(prompt="hi"), "prompt"),
    (chat(system="hi"), "system"),
    (chat(temperature=1), "temperature"),
    (chat(max_tokens=1), "max_tokens"),
    (chat(modle="m"), "modle"),
    (chat(options="x"), "options"),
    (chat(options=[]), "options"),
    (option("temperature", "hot"), "options.temperature"),
    (option("temperature", -0.1), "options.temperature"),
    (option("temperature", 2.1), "options.temperature"),
    (option("temperature", True), "options.temperature"),
    (option("top_p", 1.1), "options.top_p"),
    (option("top_p", -1), "options.top_p"),
    (option("top_k", -2), "options.top_k"),
    (option("top_k", 0.5), "options.top_k"),
    (option("min_p", 2), "options.min_p"),
    (option("seed", 0.5), "options.seed"),
    (option("seed", 2**64), "options.seed"),
    (option("seed", -(2**63) - 1), "options.seed"),
    (option("num_predict", 0), "options.num_predict"),
    (option("num_predict", -3), "options.num_predict"),
    (option("num_predict", "12"), "options.num_predict"),
    (option("stop", 1), "options.stop"),
    (option("stop", [""]), "options.stop[0]"),
    (option("stop", ["x"] * 17), "options.stop"),
    (option("stop", ["x" * 1001]), "options.stop[0]"),
    (option("repeat_penalty", -1), "options.repeat_penalty"),
    (option("repeat_penalty", 11), "options.repeat_penalty"),
    (option("presence_penalty", 3), "options.presence_penalty"),
    (option("frequency_penalty", -3), "options.frequency_penalty"),
    (option("num_ctx", "4096"), "options.num_ctx"),
    (option("num_gpu", True), "options.num_gpu"),
    (option("use_mmap", 1), "options.use_mmap"),
    (option("mirostat", 1), "options.mirostat"),
    (option("mirostat_tau", "5"), "options.mirostat_tau"),
    (option("tfs_z", 0.5), "options.tfs_z"),
    (option("typical_p", 0.5), "options.typical_p"),
    (option("repeat_last_n", 32), "options.repeat_last_n"),
    (option("penalize_newline", False), "options.penalize_newline"),
    (option("rope_frequency_base", 10000), "options.rope_frequency_base"),
    (option("vocab_only", True), "options.vocab_only"),
    (option("temprature", 1), "options.temprature"),
    (option("x" * 1000, 1), "options." + "x" * 52),
]
BAD_GENERATES = [
    (generate(prompt=1), "prompt"),
    (generate(prompt=["hi"]), "prompt"),
    (generate(system=1), "system"),
    (generate(raw="yes"), "raw"),
    (generate(raw=True, system="hi"), "system"),
    (generate(raw=True, think=True), "think"),
    (generate(images=["aGk="]), "images[0]"),
    (generate(raw=True, images=["aGk="]), "images"),
    (generate(prompt="", images=["aGk="]), "images"),
    (generate(images="aGk="), "images"),
    (generate(suffix="x"), "suffix"),
    (generate(template="x"), "template"),
    (generate(context=[1, 2]), "context"),
    (generate(context="x"), "context"),
    (generate(width=64), "width"),
    (generate(steps=4), "steps"),
    (generate(tools=[]), "tools"),
    (generate(messages=[USER]), "messages"),
    (generate(prompt="", keep_alive="x"), "keep_alive"),
    (generate(prompt="", options={"temperature": 9}), "options.temperature"),
    ({"model": "m", "keep_alive": 0, "images": ["aGk="]}, "images"),
    ({"model": "m", "keep_alive": 0, "template": "x"}, "template"),
]
BAD_SHOWS = [
    ({}, "model"),
    ({"model": ""}, "model"),
    ({"model": 1}, "model"),
    ({"name": []}, "name"),
    ({"model": "m", "verbose": "yes"}, "verbose"),
    ({"model": "m", "system": "x"}, "system"),
    ({"model": "m", "template": "x"}, "template"),
    ({"model": "m", "options": {"num_ctx": 1}}, "options"),
    ({"modell": "m"}, "modell"),
]
BAD_EMBEDS = [
    (embed(input=1), "input"),
    (embed(input={}), "input"),
    (embed(input=[1]), "input[0]"),
    (embed(input=["a", [1]]), "input[1]"),
    (embed(input=["a", ""]), "input[1]"),
    (embed(input=["a"] * 2049), "input"),
    (embed(truncate=1), "truncate"),
    (embed(dimensions=-1), "dimensions"),
    (embed(dimensions=1.5), "dimensions"),
    (embed(dimensions=2**31), "dimensions"),
    (embed(keep_alive="x"), "keep_alive"),
    (embed(options={"num_ctx": "x"}), "options.num_ctx"),
    (embed(options={"seed": 2**64}), "options.seed"),
    (embed(options={"pooling": "mean"}), "options.pooling"),
    (embed(prompt="a"), "prompt"),
    (embed(encoding_format="base64"), "encoding_format"),
    (embed(model="m"), "model"),
    (embed(model="m", input=[]), "model"),
]
BAD_EMBEDDINGS = [
    ({"model": "org/embed", "prompt": 1}, "prompt"),
    ({"model": "org/embed", "prompt": ["a"]}, "prompt"),
    ({"model": "org/embed", "input": "a"}, "input"),
    ({"model": "org/embed", "prompt": "a", "keep_alive": []}, "keep_alive"),
    ({"model": "m", "prompt": "a"}, "model"),
]
BAD = [*((CHAT, *each) for each in BAD_CHATS), *((GENERATE, *each) for each in BAD_GENERATES)]
BAD += [(SHOW, *each) for each in BAD_SHOWS]
BAD += [(EMBED, *each) for each in BAD_EMBEDS]
BAD += [(EMBEDDINGS, *each) for each in BAD_EMBEDDINGS]


async def test_a_bad_body_is_refused_with_its_field_and_reaches_no_engine():
    assert len(BAD) > 120
    async with serving() as served, aiohttp.ClientSession(served.url) as http:
        residency = Residency(served.registry)
        for path, body, param in BAD:
            async with http.post(path, json=body) as answer:
                shown = await answer.json()
                assert answer.status == 400, (path, body, shown)
                assert shown.keys() == {"error", "code", "param", "details"}
                assert (shown["param"], isinstance(shown["error"], str)) == (param, True), (path, body, shown)
                assert shown["code"] in ("invalid_request", "unsupported_capability")
        assert served.registry.waits.empty()
        assert served.engine.arrivals.empty()
    assert residency.unloaded == residency.kept == []


@pytest.mark.parametrize("path", [CHAT, GENERATE, SHOW, EMBED, EMBEDDINGS])
async def test_what_is_not_json_is_refused_everywhere(path):
    async with serving() as served, aiohttp.ClientSession(served.url) as http:
        for body in NOT_JSON:
            async with http.post(path, data=body, headers={"Content-Type": "application/json"}) as answer:
                shown = await answer.json()
                assert (answer.status, shown["code"]) == (400, "invalid_request"), body[:50]
        async with http.post(path, data=b"model=m") as answer:
            assert (answer.status, (await answer.json())["code"]) == (415, "unsupported_media_type")
        assert served.registry.waits.empty()


async def refused(body):
    """The status of a refusal, and what it says."""
    async with serving() as served:
        status, text = await ask(served, body, CHAT)
    return status, json.loads(text)


async def test_the_nearest_name_is_told():
    status, text = await refused(option("temprature", 1))
    assert status == 400
    assert "did you mean options.temperature?" in text["error"]


async def test_tools_are_refused_by_a_model_that_makes_no_calls():
    async with serving() as served, aiohttp.ClientSession(served.url) as http:
        served.engine.tokenizer.has_tools = False
        async with http.post(CHAT, json=chat(tools=[WEATHER])) as answer:
            shown = await answer.json()
    assert (answer.status, shown["code"], shown["param"]) == (400, "unsupported_capability", "tools")


async def test_more_tokens_than_the_context_are_refused():
    status, shown = await refused(option("num_predict", 95))
    assert (status, shown["code"], shown["param"]) == (400, "context_length_exceeded", "messages")
    assert shown["details"]["context_length"] == 100


ABSENT = [
    ("POST", "/api/pull"),
    ("POST", "/api/push"),
    ("POST", "/api/create"),
    ("POST", "/api/copy"),
    ("DELETE", "/api/delete"),
    ("POST", "/api/blobs/sha256:00"),
    ("GET", "/api"),
]


@pytest.mark.parametrize(("method", "path"), ABSENT)
async def test_what_is_not_there_is_not_found(method, path):
    async with serving() as served:
        status, _, data = await by_hand(served.port, f"{method} {path} HTTP/1.1\nHost: localhost")
    assert (status, json.loads(data)["code"]) == (404, "not_found")
    assert isinstance(json.loads(data)["error"], str)


async def test_a_foreign_page_is_refused_in_the_same_shape():
    head = f"POST {CHAT} HTTP/1.1\nHost: localhost\nOrigin: https://evil.example"
    async with serving() as served:
        status, _, data = await by_hand(served.port, head)
    assert status == 403
    assert json.loads(data).keys() == {"error", "code", "param", "details"}
    assert json.loads(data)["code"] == "origin_not_allowed"
