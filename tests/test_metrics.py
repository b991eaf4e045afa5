"""GET /metrics of a real daemon: what was counted, and what is true now."""

import asyncio

import pytest
from daemon_process import Api, chat_body, daemon
from metrics_reading import delta, sample, scrape
from tiny_models import place_models

from mlxd.daemon.metrics import Metrics

FREED = "mlxd_cancel_to_freed_seconds_count"


@pytest.fixture(scope="module")
def served(tmp_path_factory, micro_model):
    folder = tmp_path_factory.mktemp("metrics")
    models = place_models(folder / "models", {"m": micro_model, "idle": micro_model})
    with daemon(folder / "d", models) as running:
        yield running


async def test_the_time_from_cancel_to_freed_is_a_histogram(served):
    async with Api(served.url) as api:
        before = await scrape(api)
        body = {**chat_body("m", "hello", max_tokens=30_000), "stream": True}
        async with api._session.post("/v1/chat/completions", json=body, headers={"X-Request-Id": "gone"}) as response:
            await response.content.readany()
            await response.content.readany()
            assert (await api.call("DELETE", "/v1/requests/gone"))[0] == 200
            await response.read()
        # the answer may end before the engine has let go
        async with asyncio.timeout(10):
            while (after := await scrape(api)) and not delta(before, after, FREED, model="m"):
                pass
    assert delta(before, after, FREED, model="m") == 1
    assert delta(before, after, "mlxd_cancel_to_freed_seconds_sum", model="m") < 5
    assert delta(before, after, "mlxd_cancel_to_freed_seconds_bucket", model="m", le="+Inf") == 1


async def test_gauges_say_what_is_loaded_and_what_it_takes(served):
    async with Api(served.url) as api:
        await api.text("m")
        # what a request has computed is kept a moment after its end
        async with asyncio.timeout(10):
            before = model = None
            while model is None or model["resident_bytes"] != before["resident_bytes"]:
                before = await api.get("/admin/models/m")
                found = await scrape(api)
                model = await api.get("/admin/models/m")
    assert sample(found, "mlxd_model_state", model="m", state="ready") == 1
    assert sample(found, "mlxd_model_state", model="idle", state="unloaded") == 1
    assert sample(found, "mlxd_model_resident_bytes", model="m") == model["resident_bytes"] > 0
    assert sample(found, "mlxd_model_resident_bytes", model="idle") == 0
    assert sample(found, "mlxd_requests_running", model="m") == 0
    assert ("mlxd_requests_running", frozenset({("model", "idle")})) not in found


async def test_requests_are_tasks_and_what_they_were_promised_is_given_back(served):
    async with Api(served.url) as api:
        await api.text("m")
        before = await scrape(api)
        async with asyncio.TaskGroup() as requests:
            for number in range(4):
                requests.create_task(api.text("m", f"hello {number}", max_tokens=200))
            await api.until("/admin/requests", lambda answer: len(answer["data"]) == 4)
            busy = await scrape(api)
        async with asyncio.timeout(10):
            while sample(await scrape(api), "mlxd_memory_promised_bytes"):
                await asyncio.sleep(0.02)
    assert sample(busy, "mlxd_tasks") > sample(before, "mlxd_tasks") >= 5


async def test_the_parts_of_the_memory_sum_to_the_footprint(served):
    async with Api(served.url) as api:
        found = await scrape(api)
    memory = {dict(labels)["kind"]: value for (name, labels), value in found.items() if name == "mlxd_memory_bytes"}
    parts = sum(value for kind, value in memory.items() if kind not in ("footprint", "mlx_active"))
    assert parts == memory["footprint"] > 0
    assert sample(found, "mlxd_memory_limit_bytes", kind="soft") < sample(
        found, "mlxd_memory_limit_bytes", kind="ceiling"
    )


def test_what_is_counted_of_a_model_after_it_went_goes_too():
    metrics = Metrics()
    observe = metrics.freed("gone")
    metrics.forget(())
    observe(0.01)  # its engine still ends what it has
    metrics.forget(())
    assert b'model="gone"' not in metrics.text()
