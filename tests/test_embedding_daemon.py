"""Embeddings and reranking over HTTP: one real daemon, a real model beside tiny ones, and who is in memory."""

import asyncio
import base64
import json
import struct

import aiohttp
import numpy as np
import openai
import pytest
from daemon_faults import scripted_probe
from daemon_process import Api, daemon
from doc_pages import blocks, page
from numpy_encoder import NumpyEncoder
from tiny_encoders import build_encoder, change_config, rename_weights
from tiny_models import place_models
from tokenizers import Tokenizer

CONFIG = """
[residency]
max_loaded = 2

[[model]]
name = "minilm"
aliases = ["text-embedding-3-small"]

[[model]]
name = "plain"
engine = { prefill_chunk = 64 }  # many small steps, so that something can happen between them
"""
FOOD, EATS, VIOLIN = "A man is eating food.", "A man eats something.", "The girl plays the violin."


@pytest.fixture(scope="module")
def running(tmp_path_factory, minilm, tiny_model):
    folder = tmp_path_factory.mktemp("embedding")
    built = folder / "built"
    build_encoder(built / "plain", unit=False, prompts={"query": "import ", "document": ""}, default_prompt="query")
    build_encoder(built / "scorer", scores=True)
    build_encoder(built / "broken")
    rename_weights(built / "broken", lambda name: name.replace("query", "quest"))
    build_encoder(built / "future")
    change_config(built / "future", model_type="modernbert")
    models = place_models(
        folder / "models",
        {
            "minilm": minilm,
            "chatty": tiny_model,
            **{name: built / name for name in ("plain", "scorer", "broken", "future")},
        },
    )
    with daemon(folder / "d", models, CONFIG, environ=scripted_probe(folder)) as running:
        yield running


@pytest.fixture
async def api(running):
    async with Api(running.url) as api:
        yield api


@pytest.fixture
async def client(running):
    async with openai.AsyncOpenAI(base_url=running.url + "/v1", api_key="x", max_retries=0) as client:
        yield client


async def vectors(api, model, texts, **fields):
    status, answer = await api.call("POST", "/v1/embeddings", {"model": model, "input": texts, **fields})
    assert status == 200, answer
    return np.array([one["embedding"] for one in answer["data"]])


async def refusal(api, body, path="/v1/embeddings"):
    status, answer = await api.call("POST", path, body)
    assert status >= 400, answer
    return status, answer["error"]["code"], answer["error"]["param"]


# -- embeddings ----------------------------------------------------------------------------------------


async def test_openais_client_gets_vectors_that_know_a_paraphrase(client):
    made = await client.embeddings.create(model="text-embedding-3-small", input=[FOOD, EATS, VIOLIN])
    a, b, c = (np.array(one.embedding) for one in made.data)
    assert [one.index for one in made.data] == [0, 1, 2]
    assert (len(a), made.model, made.usage.prompt_tokens) == (384, "text-embedding-3-small", made.usage.total_tokens)
    assert a @ b > a @ c + 0.3
    assert np.linalg.norm(a) == pytest.approx(1, abs=1e-5)


async def test_base64_is_the_same_as_little_endian_numbers(api):
    body = {"model": "minilm", "input": FOOD}
    _, told = await api.call("POST", "/v1/embeddings", {**body, "encoding_format": "float"})
    _, packed = await api.call("POST", "/v1/embeddings", {**body, "encoding_format": "base64"})
    raw = base64.b64decode(packed["data"][0]["embedding"])
    assert list(struct.unpack("<384f", raw)) == pytest.approx(told["data"][0]["embedding"], abs=1e-6)
    assert told["usage"] == {"prompt_tokens": 8, "total_tokens": 8}
    assert told["object"] == "list"
    assert told["data"][0].keys() == {"index", "embedding", "object"}
    assert told["mlxd"]["cancelled"] is False


async def test_token_ids_are_taken_as_they_are(api, minilm):
    ids = Tokenizer.from_file(str(minilm / "tokenizer.json"))
    ids.no_padding()
    tokens = [ids.encode(text).ids for text in (FOOD, VIOLIN)]
    wanted = await vectors(api, "minilm", [FOOD, VIOLIN])
    assert await vectors(api, "minilm", tokens) == pytest.approx(wanted, abs=1e-5)
    assert await vectors(api, "minilm", tokens[0]) == pytest.approx(wanted[:1], abs=1e-5)


async def test_fewer_dimensions_are_the_first_ones_with_length_one(api, client):
    whole = await vectors(api, "minilm", FOOD)
    short = np.array((await client.embeddings.create(model="minilm", input=FOOD, dimensions=64)).data[0].embedding)
    assert short == pytest.approx(whole[0, :64] / np.linalg.norm(whole[0, :64]), abs=1e-5)
    assert (await vectors(api, "minilm", FOOD, dimensions=384) == whole).all()
    # and not where the model's own have another length
    plain = await vectors(api, "plain", FOOD)
    assert await vectors(api, "plain", FOOD, dimensions=5) == pytest.approx(plain[:, :5], abs=1e-5)


async def test_a_prompt_goes_before_the_text_by_name_or_by_default(api, running):
    folder = running.folder.parent / "models" / "plain"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    model = NumpyEncoder(folder)
    for fields, text in (
        ({}, "import os"),
        ({"prompt_name": "query"}, "import os"),
        ({"prompt_name": "document"}, "os"),
    ):
        wanted = model.states(tokenizer.encode(text).ids).mean(axis=0)
        assert (await vectors(api, "plain", "os", **fields))[0] == pytest.approx(wanted, abs=1e-4)
    assert await refusal(api, {"model": "plain", "input": "os", "prompt_name": "x"}) == (
        400,
        "invalid_request",
        "prompt_name",
    )


async def test_two_thousand_inputs_are_answered_in_their_order(api):
    texts = [f"{number % 20}" for number in range(2048)]
    made = await vectors(api, "plain", texts)
    assert made.shape == (2048, 64)
    assert np.abs(made - np.tile(made[:20], (103, 1))[:2048]).max() < 1e-4


BAD = [
    ({"input": []}, "input"),
    ({"input": ""}, "input"),
    ({"input": ["a", ""]}, "input[1]"),
    ({"input": [[]]}, "input[0]"),
    ({"input": [["a"]]}, "input[0][0]"),
    ({"input": ["a", 1]}, "input[1]"),
    ({"input": [1, "a"]}, "input[1]"),
    ({"input": [[1], "a"]}, "input[1]"),
    ({"input": [1.5]}, "input[0]"),
    ({"input": [True]}, "input[0]"),
    ({"input": {"text": "a"}}, "input"),
    ({"input": None}, "input"),
    ({"input": ["a"] * 2049}, "input"),
    ({"input": [30522]}, "input"),
    ({"input": [[1], [-1]]}, "input[1]"),
    ({"input": [[1], [100_000] * 8000]}, "input[1]"),
    ({"input": [10**30]}, "input"),
    ({"input": "a", "dimensions": 385}, "dimensions"),
    ({"input": "a", "dimensions": 0}, "dimensions"),
    ({"input": "a", "dimensions": "8"}, "dimensions"),
    ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
    ({"input": "a", "prompt_name": "query"}, "prompt_name"),
    ({"input": "a", "normalize": True}, "normalize"),
    ({"input": "a", "truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
    ({"input": "a", "inputs": "b"}, "inputs"),
    ({}, "input"),
]


async def test_what_cannot_be_served_is_refused_by_its_field(api):
    for body, param in BAD:
        status, code, named = await refusal(api, {"model": "minilm", **body})
        assert (status, code) == (400, "invalid_request"), body
        assert named == param, (body, named)


async def test_an_input_that_is_too_long_is_refused_and_named(api):
    status, answer = await api.call("POST", "/v1/embeddings", {"model": "minilm", "input": ["a", "b " * 50_000]})
    assert (status, answer["error"]["code"], answer["error"]["param"]) == (400, "context_length_exceeded", "input[1]")
    details = answer["error"]["details"]
    assert (details["context_length"], details["max_tokens"]) == (256, 0)
    assert details["prompt_tokens"] > 256
    assert await refusal(api, {"model": "minilm", "input": [[1] * 257]}) == (400, "context_length_exceeded", "input[0]")
    assert await refusal(api, {"model": "minilm", "input": [1] * 257}) == (400, "context_length_exceeded", "input")


async def test_a_field_without_effect_is_named_in_the_head(running):
    async with aiohttp.ClientSession(running.url) as session:
        body = {"model": "plain", "input": "a", "user": "me"}
        async with session.post("/v1/embeddings", json=body) as response:
            assert (response.status, response.headers["X-Mlxd-Ignored"]) == (200, "user")


# -- reranking -----------------------------------------------------------------------------------------


async def test_a_cross_encoder_ranks_by_the_sigmoid_of_its_scores(api, running):
    folder = running.folder.parent / "models" / "scorer"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    model = NumpyEncoder(folder)
    documents = ["def run(): pass", "class Thing", "return", "import sys, os"]
    pairs = [tokenizer.encode("import os", text) for text in documents]
    wanted = [1 / (1 + np.exp(-model.score(each.ids, sum(each.type_ids)))) for each in pairs]
    body = {"model": "scorer", "query": "import os", "documents": documents, "return_documents": True}
    status, answer = await api.call("POST", "/v1/rerank", body)
    assert status == 200, answer
    scores = [one["relevance_score"] for one in answer["results"]]
    assert scores == sorted(scores, reverse=True)
    assert {one["index"]: one["relevance_score"] for one in answer["results"]} == pytest.approx(
        dict(enumerate(wanted)), abs=1e-5
    )
    assert all(one["document"] == {"text": documents[one["index"]]} for one in answer["results"])
    assert answer["usage"]["total_tokens"] == sum(len(each.ids) for each in pairs)
    assert answer["id"].startswith("rerank-")


async def test_an_embedding_model_ranks_by_the_cosine(api):
    body = {"model": "minilm", "query": FOOD, "documents": [VIOLIN, {"text": EATS}, "Stocks fell."], "top_n": 2}
    status, answer = await api.call("POST", "/v1/rerank", body)
    assert status == 200, answer
    query, *others = await vectors(api, "minilm", [FOOD, VIOLIN, EATS, "Stocks fell."])
    assert [one["index"] for one in answer["results"]][:1] == [1]
    assert len(answer["results"]) == 2
    for one in answer["results"]:
        assert one["relevance_score"] == pytest.approx(query @ others[one["index"]], abs=1e-5)
        assert "document" not in one


async def test_a_long_document_is_cut_and_a_long_query_refused(api):
    long = "word " * 2000
    body = {"model": "scorer", "query": "a", "documents": ["b", long]}
    status, answer = await api.call("POST", "/v1/rerank", body)
    assert status == 200, answer
    exceeded = (400, "context_length_exceeded")
    assert await refusal(api, {**body, "truncate": False}, "/v1/rerank") == (*exceeded, "documents[1]")
    for model in ("scorer", "minilm"):
        wanted = {"model": model, "query": long, "documents": ["b"]}
        assert await refusal(api, wanted, "/v1/rerank") == (*exceeded, "query")


async def test_a_ranking_that_cannot_be_made_is_refused_by_its_field(api):
    good = {"model": "scorer", "query": "a", "documents": ["b"]}
    for change, param in (
        ({"query": ""}, "query"),
        ({"query": ["a"]}, "query"),
        ({"documents": []}, "documents"),
        ({"documents": "b"}, "documents"),
        ({"documents": ["b", 1]}, "documents[1]"),
        ({"documents": [{"title": "b"}]}, "documents[0].text"),
        ({"documents": ["b"] * 2049}, "documents"),
        ({"top_n": 0}, "top_n"),
        ({"return_documents": 1}, "return_documents"),
        ({"rank_fields": ["title"]}, "rank_fields"),
        ({"topn": 1}, "topn"),
    ):
        status, code, named = await refusal(api, {**good, **change}, "/v1/rerank")
        assert (status, code) == (400, "invalid_request"), change
        assert named.split("[")[0] == param.split("[")[0], (change, named)


# tokens for a few seconds
EACH = 123  # of 120 words, two special ones and the prompt
LONG = ["x " * 120] * 1000


# -- kinds and residency -------------------------------------------------------------------------------


async def test_each_kind_of_model_refuses_what_is_not_its_own(api):
    unsupported = (400, "unsupported_capability", "model")
    assert await refusal(api, {"model": "chatty", "input": "a"}) == unsupported
    assert await refusal(api, {"model": "chatty", "query": "a", "documents": ["b"]}, "/v1/rerank") == unsupported
    assert await refusal(api, {"model": "scorer", "input": "a"}) == unsupported
    assert await refusal(api, {"model": "minilm", "prompt": "a"}, "/v1/completions") == unsupported
    chat = {"model": "minilm", "messages": [{"role": "user", "content": "a"}]}
    assert await refusal(api, chat, "/v1/chat/completions") == unsupported
    assert (await refusal(api, {"model": "nobody", "input": "a"}))[:2] == (404, "model_not_found")


async def test_a_model_that_cannot_be_loaded_says_why(api):
    for name, reason in (("broken", "bad_files"), ("future", "unsupported")):
        status, answer = await api.call("POST", "/v1/embeddings", {"model": name, "input": "a"})
        assert (status, answer["error"]["code"]) == (503, "model_load_failed"), answer
        assert answer["error"]["details"]["reason"] == reason
        assert (await api.get(f"/admin/models/{name}"))["kind"] == "embedding"


async def test_it_is_loaded_on_request_counted_and_leaves_for_others(api):
    await vectors(api, "minilm", FOOD)
    before = await api.get("/admin/models/minilm")
    assert (before["kind"], before["state"]) == ("embedding", "ready")
    assert before["resident_bytes"] == pytest.approx(90_000_000, rel=0.02)
    assert before["engine"]["running"] == before["engine"]["waiting"] == before["engine"]["completion_tokens"] == 0
    memory = await api.get("/admin/memory")
    assert memory["parts"]["weights"] >= before["resident_bytes"]
    await vectors(api, "minilm", FOOD)
    after = await api.get("/admin/models/minilm")
    assert after["engine"]["prompt_tokens"] == before["engine"]["prompt_tokens"] + 8
    # two at a time, of which one may not leave
    await vectors(api, "plain", "a")
    await api.call("PATCH", "/admin/models/plain", {"pinned": True})
    await api.text("chatty", max_tokens=1)
    await api.call("PATCH", "/admin/models/plain", {"pinned": False})
    states = await api.states()
    assert {name for name, state in states.items() if state == "ready"} == {"plain", "chatty"}
    evicted = [d for d in (await api.get("/admin/decisions"))["data"] if d["kind"] == "evict"]
    assert (evicted[-1]["model"], evicted[-1]["for_model"], evicted[-1]["reason"]) == ("minilm", "chatty", "lru")
    assert len(await vectors(api, "minilm", FOOD)) == 1


async def test_an_unload_by_force_ends_what_runs_and_the_next_request_loads_again(api):
    await vectors(api, "plain", "a")
    asked = asyncio.create_task(api.call("POST", "/v1/embeddings", {"model": "plain", "input": LONG}))
    await api.until("/admin/models/plain", lambda model: model["engine"]["running"])
    [live] = (await api.get("/admin/requests"))["data"]
    assert (live["api"], live["state"], live["model"]) == ("embeddings", "prefilling", "plain")
    assert live["prompt_tokens"] == EACH * len(LONG)
    status, _ = await api.call("POST", "/admin/models/plain/unload", {"mode": "force"})
    assert status == 200
    status, answer = await asked
    assert (status, answer["error"]["code"]) == (503, "model_unloaded")
    assert len(await vectors(api, "plain", "a")) == 1


async def test_a_cancel_gives_what_was_made_and_a_lost_client_frees_the_engine(api, running):
    body = {"model": "plain", "input": LONG}
    asked = asyncio.create_task(api.call("POST", "/v1/embeddings", body, **{"X-Request-Id": "mine"}))
    await api.until("/admin/models/plain", lambda model: model["engine"] and model["engine"]["running"])
    status, _ = await api.call("DELETE", "/v1/requests/mine")
    assert status == 200
    status, answer = await asked
    assert status == 200, answer
    assert answer["mlxd"]["cancelled"]
    assert 0 < len(answer["data"]) < len(LONG)
    assert answer["usage"]["prompt_tokens"] == EACH * len(answer["data"])
    async with aiohttp.ClientSession(running.url) as session:
        leaving = asyncio.ensure_future(session.post("/v1/embeddings", json=body))
        await api.until("/admin/models/plain", lambda model: model["engine"]["running"])
        leaving.cancel()
    await api.until("/admin/models/plain", lambda model: not model["engine"]["running"] and not model["leases"])
    assert (await api.get("/admin/requests"))["data"] == []


async def test_an_operators_abort_ends_it_as_the_memory_guard_would(api):
    await vectors(api, "plain", "a")
    asked = asyncio.create_task(api.call("POST", "/v1/embeddings", {"model": "plain", "input": LONG}))
    await api.until("/admin/models/plain", lambda model: model["engine"]["running"])
    assert (await api.call("POST", "/admin/abort"))[1] == {"aborted": 1}
    status, answer = await asked
    assert (status, answer["error"]["code"]) == (503, "memory_ceiling")
    assert len(await vectors(api, "plain", "a")) == 1


# -- the page ------------------------------------------------------------------------------------------


async def test_the_snippets_of_the_page_run(running):
    [snippet] = [text for _, text in blocks(page("api-embeddings"), "python")]
    code = snippet.replace("http://127.0.0.1:8484", running.url)
    said = {}
    await asyncio.to_thread(exec, code, said)
    assert said["best"] == EATS


async def test_the_examples_of_the_page_look_like_the_answers(api):
    examples = [json.loads(text) for _, text in blocks(page("api-embeddings"), "json")]
    for path, body, answer in (("/v1/embeddings", *examples[:2]), ("/v1/rerank", *examples[2:4])):
        status, real = await api.call("POST", path, body)
        assert status == 200, real
        assert shape(real) == shape(answer)


def shape(value):
    if isinstance(value, dict):
        return {key: shape(each) for key, each in value.items()}
    return (
        shape(value[0]) if isinstance(value, list) else type(value).__name__ if not isinstance(value, int) else "float"
    )
