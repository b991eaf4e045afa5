"""What requests come to, counted over a real daemon's life, and the names and labels of all series."""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path

import pytest
from daemon_process import Api, chat_body, daemon
from doc_pages import rows, words
from metrics_reading import delta, families, scrape
from tiny_encoders import build_encoder
from tiny_models import place_models

CHAT = "/v1/chat/completions"
API_TEXT = (Path(__file__).parent.parent / "docs" / "api.md").read_text()


@pytest.fixture(scope="module")
def served(tmp_path_factory, micro_model):
    folder = tmp_path_factory.mktemp("traffic")
    models = place_models(folder / "models", {"m": micro_model, "other": micro_model})
    build_encoder(models / "vectors")
    with daemon(folder / "d", models, "[models]\nwatch_interval = 0.1\n") as running:
        yield running


@pytest.fixture
async def api(served):
    async with Api(served.url) as api:
        yield api


def requests(before, after, outcome: str, api: str = "chat") -> float:
    return delta(before, after, "mlxd_requests_total", model="m", api=api, outcome=outcome)


async def test_an_answer_counts_its_tokens_and_times(api):
    await api.text("m")
    before = await scrape(api)
    status, answer = await api.chat("m", "count me, please", max_tokens=20, n=2, temperature=1)
    after, usage = await scrape(api), answer["usage"]
    assert status == 200
    assert requests(before, after, "ok") == 1
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    for kind, count in (
        ("prompt", usage["prompt_tokens"]),
        ("completion", usage["completion_tokens"]),
        ("cached", cached),
    ):
        assert delta(before, after, "mlxd_tokens_total", model="m", kind=kind) == count, kind
    assert delta(before, after, "mlxd_request_queue_seconds_count") == 1
    assert delta(before, after, "mlxd_time_to_first_token_seconds_count") == 2
    assert 0 < delta(before, after, "mlxd_time_per_output_token_seconds_sum") < 20
    ttft = answer["mlxd"]["ttft_s"]
    assert ttft <= delta(before, after, "mlxd_time_to_first_token_seconds_sum") + 0.001


async def test_tokens_count_while_they_come(api):
    async with api.stream("m", "go on", max_tokens=30_000) as response:
        before = await scrape(api)
        await response.content.readany()
        async with asyncio.timeout(10):
            while delta(before, await scrape(api), "mlxd_tokens_total", model="m", kind="completion") < 50:
                await response.content.readany()


async def test_each_way_to_end_is_an_outcome(api):
    await api.text("m")
    before = await scrape(api)
    body = {**chat_body("m", "go on", max_tokens=30_000), "stream": True}
    async with api._session.post(CHAT, json=body, headers={"X-Request-Id": "stopped"}) as response:
        await response.content.readany()
        assert (await api.call("DELETE", "/v1/requests/stopped"))[0] == 200
        await response.read()
    async with api.stream("m", "go on", max_tokens=30_000) as response:
        await response.content.readany()
    status, _ = await api.chat("m", "x", logit_bias={"999999": 1})
    assert status == 400
    async with api.stream("m", "go on", max_tokens=30_000) as response:
        await response.content.readany()
        await api.call("POST", "/admin/models/m/unload", {"mode": "force"})
        await response.read()
    await api.until("/admin/requests", lambda answer: answer["data"] == [])
    after = await scrape(api)
    for outcome in ("cancelled", "disconnected", "refused", "failed"):
        assert requests(before, after, outcome) == 1, outcome
    assert requests(before, after, "ok") == 0
    assert delta(before, after, "mlxd_refusals_total", code="invalid_request") == 1
    assert delta(before, after, "mlxd_refusals_total", code="model_unloaded") == 1


async def test_what_names_no_model_is_a_refusal_only(api):
    before = await scrape(api)
    assert (await api.chat("nobody"))[0] == 404
    assert (await api.call("GET", "/nothing"))[0] == 404
    after = await scrape(api)
    assert delta(before, after, "mlxd_refusals_total", code="model_not_found") == 1
    assert delta(before, after, "mlxd_refusals_total", code="not_found") == 1
    assert "nobody" not in {label for _, labels in after for _, label in labels}


async def test_vectors_count_too(api):
    before = await scrape(api)
    status, answer = await api.call("POST", "/v1/embeddings", {"model": "vectors", "input": ["a b c", "d"]})
    after = await scrape(api)
    assert status == 200
    ended = delta(before, after, "mlxd_requests_total", model="vectors", api="embeddings", outcome="ok")
    tokens = delta(before, after, "mlxd_tokens_total", model="vectors", kind="prompt")
    assert (ended, tokens) == (1, answer["usage"]["prompt_tokens"])


async def test_loads_and_evictions_are_counted(api):
    await api.call("POST", "/admin/models/m/unload", {})
    before = await scrape(api)
    status, shown = await api.call("POST", "/admin/models/m/load", {})
    after = await scrape(api)
    assert status == 200
    assert delta(before, after, "mlxd_model_load_seconds_count") == 1
    assert delta(before, after, "mlxd_model_load_seconds_sum") == pytest.approx(shown["load_seconds"], abs=0.01)
    await api.call("POST", "/admin/abort")
    assert delta(after, await scrape(api), "mlxd_aborts_total", reason="operator") == 1


async def test_series_of_a_model_go_with_it(served, api, micro_model):
    place_models(served.folder.parent / "models", {"guest": micro_model})
    await api.until("/v1/models", lambda answer: "guest" in {one["id"] for one in answer["data"]})
    await api.text("guest")
    assert ("model", "guest") in {label for _, labels in await scrape(api) for label in labels}
    await api.call("POST", "/admin/models/guest/unload", {})
    shutil.rmtree(served.folder.parent / "models" / "guest")
    await api.until("/v1/models", lambda answer: "guest" not in {one["id"] for one in answer["data"]})
    assert ("model", "guest") not in {label for _, labels in await scrape(api) for label in labels}


@pytest.mark.parametrize("cycles", [5, pytest.param(1000, marks=pytest.mark.soak)])
async def test_loads_and_unloads_make_no_series(api, cycles):
    async def cycle() -> int:
        await api.text("other", max_tokens=1)
        await api.call("POST", "/admin/models/other/unload", {})
        return len(await scrape(api))

    counts = [await cycle() for _ in range(cycles)]
    assert len(set(counts)) == 1


async def test_every_series_is_documented_with_its_kind(api):
    await api.text("m")
    documented = {words(name)[0].removesuffix("_total"): kind for name, kind, *_ in rows(API_TEXT, "Metrics")}
    served = {family.name: family.type for family in await families(api)}
    assert documented == served


async def test_names_and_units_are_those_that_prometheus_asks_for(api):
    await api.text("m")
    kinds = "|".join(("counter", "gauge", "histogram", "summary"))
    for family in await families(api):
        name = family.name
        assert re.fullmatch(r"mlxd(_[a-z]+)+", name), name
        assert family.documentation.endswith("."), name
        assert not re.search(rf"_({kinds}|count|sum|bucket|info|ms|milliseconds|kb|mb|minutes|ratio_percent)$", name)
        times = [word for word in ("seconds", "bytes") if word in name.split("_")]
        assert all(name.endswith(f"_{word}") for word in times), name
        for sample in family.samples:
            assert (family.type == "counter") == sample.name.endswith("_total"), sample.name
            assert all(re.fullmatch(r"[a-z]+", label) for label in sample.labels), sample


async def test_the_log_has_the_tokens_of_an_answer_that_nobody_waited_for(api):
    before = await scrape(api)
    body = {**chat_body("m", "hello", max_tokens=30_000), "stream": True}
    async with api._session.post(CHAT, json=body, headers={"X-Request-Id": "left-early"}) as response:
        await response.content.readany()
        await response.content.readany()
        response.close()
    async with asyncio.timeout(20):
        ended: list[dict[str, object]] = []
        while not ended:
            lines = (await api.get("/admin/logs?limit=200"))["data"]
            ended = [
                each for each in lines if (each["event"], each.get("request_id")) == ("request.ended", "left-early")
            ]
    after = await scrape(api)
    assert ended[0]["outcome"] == "disconnected"
    assert ended[0]["completion_tokens"] == delta(before, after, "mlxd_tokens_total", model="m", kind="completion") > 0
