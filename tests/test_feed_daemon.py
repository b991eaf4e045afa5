"""The feed and the plans of a whole daemon: real registry, real engines, real server."""

import asyncio
from contextlib import asynccontextmanager

import aiohttp
import pytest
from api_calls import within
from api_fakes import listening
from feed_reading import numbers, reading

from mlxd.daemon.app import Daemon
from mlxd.daemon.settings import MemorySettings, ModelSettings, ModelsSettings, PresetSettings, ServerSettings, Settings
from mlxd.daemon.units import Size
from mlxd.memory.probe import SystemProbe

HELLO = [{"role": "user", "content": "hello"}]
PASSING = {"unload_at", "loaded_at", "last_used_at"}


class Running:
    def __init__(self, daemon, port, http):
        self.daemon = daemon
        self.port = port
        self.http = http
        self.url = f"http://127.0.0.1:{port}"

    async def get(self, path):
        async with self.http.get(path) as response:
            return response.status, await response.json()

    async def post(self, path, **body):
        async with self.http.post(path, json=body) as response:
            return response.status, await response.json()


@asynccontextmanager
async def running(folder, **changes):
    names = ModelSettings("tiny", aliases=("gpt-4o",), presets=(PresetSettings("tiny-cold"),))
    settings = Settings(models=ModelsSettings(dirs=(folder,)), model=(names,), server=ServerSettings(drain_timeout=5))
    settings = Settings(
        **{field: getattr(settings, field) for field in ("models", "model", "server")} | {"memory": QUICK} | changes
    )
    daemon = Daemon(settings, SystemProbe(), hf_cache=None)
    daemon.start()
    async with listening(daemon.application()) as port, aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:
        try:
            yield Running(daemon, port, http)
        finally:
            assert await daemon.close()


QUICK = MemorySettings(poll_interval=0.05)


@pytest.fixture
async def served(models_dir, tiny_model, other_tiny_model):
    async with running(models_dir({"tiny": tiny_model, "other": other_tiny_model})) as served:
        yield served


class Known:
    """What a reader knows from a snapshot and the events after it."""

    def __init__(self, snapshot):
        self.models = {model["id"]: model for model in snapshot["models"]}
        self.requests = {request["id"]: request for request in snapshot["requests"]}
        self.decisions = list(snapshot["decisions"])
        self.memory = snapshot["memory"]

    def apply(self, name, data):
        if name == "decision":
            self.decisions.append(data["decision"])
        elif name == "memory":
            self.memory = data["memory"]
        else:
            objects = {"model": self.models, "request": self.requests}[name]
            shown = data[name]
            objects[shown["id"]] = shown
            if shown.get("ended") or shown.get("removed"):
                del objects[shown["id"]]


def steady(models):
    return {name: {key: value for key, value in model.items() if key not in PASSING} for name, model in models.items()}


async def test_the_events_after_a_snapshot_tell_what_the_next_snapshot_has(served):
    async with reading(served.url) as events:
        _, snapshot = await events.next()
        known = Known(snapshot)
        assert {model["state"] for model in known.models.values()} == {"unloaded"}
        status, _ = await served.post("/v1/chat/completions", model="gpt-4o", messages=HELLO, max_tokens=8)
        assert status == 200
        assert (await served.post("/admin/models/tiny/unload"))[0] == 200
        seen = await events.until("model", id="tiny", state="unloaded")
        async with reading(served.url) as late:
            _, later = await late.next()
        while not seen or numbers(seen)[-1] < later["seq"]:
            seen.append(await events.next())
    assert numbers(seen) == list(range(snapshot["seq"] + 1, later["seq"] + 1))
    for name, data in seen:
        known.apply(name, data)
    then = Known(later)
    assert steady(known.models) == steady(then.models)
    assert known.requests == then.requests == {}
    assert known.decisions == then.decisions
    assert [decision["kind"] for decision in known.decisions][:1] == ["load"]
    states = [data["model"]["state"] for name, data in seen if name == "model"]
    assert list(dict.fromkeys(states)) == ["loading", "ready", "unloading", "unloaded"]
    moves = [data["request"].get("state", "ended") for name, data in seen if name == "request"]
    assert moves[0] == "queued"
    assert moves[-1] == "ended"


async def test_a_stream_sees_the_daemon_stop_and_ends_with_it(models_dir, tiny_model):
    async with running(models_dir({"tiny": tiny_model})) as served, reading(served.url) as events:
        await events.next()
        await served.post("/admin/models/tiny/load")
        await events.until("model", state="ready")
        assert await within(served.daemon.close())
        await events.until("model", state="unloaded")
    assert served.daemon.services.feed.readers == 0
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


@pytest.mark.parametrize("name", ["tiny", "gpt-4o", "tiny-cold", "TINY"])
async def test_a_plan_is_told_for_every_name_and_changes_nothing(served, name):
    status, plan = await served.get(f"/admin/explain/{name}")
    assert status == 200
    assert list(plan) == [
        "model", "verdict", "needed_bytes", "free_bytes", "evicts", "waits_for", "blocked_by", "eta_s", "order",
    ]  # fmt: skip
    assert (plan["model"], plan["verdict"], plan["evicts"], plan["blocked_by"]) == ("tiny", "loads", [], [])
    assert plan["needed_bytes"] < plan["free_bytes"]
    assert served.daemon.registry.model("tiny").state == "unloaded"
    assert served.daemon.registry.last_decisions(10) == []


async def test_the_plan_of_a_model_in_memory_is_ready(served):
    await served.post("/admin/models/tiny/load")
    _, plan = await served.get("/admin/explain/tiny")
    assert (plan["verdict"], plan["eta_s"]) == ("ready", 0.0)


async def test_a_plan_for_an_unknown_name_is_not_found(served):
    status, answer = await served.get("/admin/explain/tinny")
    assert (status, answer["error"]["code"]) == (404, "model_not_found")
    assert answer["error"]["details"]["suggestions"]


async def test_a_dry_run_answers_the_plan_and_changes_nothing(served):
    before = (await served.get("/admin/models/tiny"))[1]
    status, plan = await served.post("/admin/models/gpt-4o/load", dry_run=True, pin=True, ttl="5m")
    assert (status, plan["model"], plan["verdict"]) == (200, "tiny", "loads")
    assert (await served.get("/admin/models/tiny"))[1] == before
    assert served.daemon.registry.last_decisions(10) == []


async def test_a_dry_run_of_a_bad_body_is_refused_as_the_load_would_be(served):
    status, answer = await served.post("/admin/models/tiny/load", dry_run=True, ttl="soon")
    assert (status, answer["error"]["param"]) == (400, "ttl")


async def test_an_operator_may_load_what_requests_may_not(models_dir, tiny_model):
    folder = models_dir({"tiny": tiny_model})
    async with running(folder, models=ModelsSettings(dirs=(folder,), autoload=False)) as served:
        assert (await served.get("/admin/explain/tiny"))[1]["verdict"] == "autoload_off"
        assert (await served.post("/admin/models/tiny/load", dry_run=True))[1]["verdict"] == "loads"


async def test_a_model_that_never_fits_is_told_so(models_dir, tiny_model):
    footprint = SystemProbe().sample().bytes
    tight = MemorySettings(ceiling=Size(footprint + 1_000_000), soft=Size(fraction=1.0))
    async with running(models_dir({"tiny": tiny_model}), memory=tight) as served:
        _, plan = await served.get("/admin/explain/tiny")
    assert (plan["verdict"], plan["eta_s"]) == ("never_fits", None)
    assert plan["needed_bytes"] > plan["free_bytes"]
