"""What llama.cpp's and LM Studio's clients do with models: list them with what is loaded, load them, unload them."""

import asyncio
import json
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import aiohttp
import pytest
from api_calls import until, within
from api_fakes import listening, live
from fake_engine import Workshop

from mlxd.daemon.api import unloading
from mlxd.daemon.api.application import make_application
from mlxd.daemon.api.running import RunningRequests
from mlxd.daemon.api.services import Services
from mlxd.daemon.key_ring import KeyRing
from mlxd.daemon.settings import Settings
from mlxd.daemon.tokenizer_threads import TokenizerThreads
from mlxd.engines.errors import LoadError, LoadFailure
from mlxd.registry.registry import ModelRegistry
from mlxd.registry.residency import MemoryReading, Policy
from mlxd.registry.spec import ModelKind, ModelSpec

SPECS = (
    ModelSpec("m", Path("m"), aliases=("gpt-4o",), presets=("m-cold",), weight_bytes=40, context_length=100),
    ModelSpec("org/embed", Path("e"), ModelKind.EMBEDDING, weight_bytes=10, context_length=50),
    ModelSpec("vast", Path("v"), ModelKind.VISION, weight_bytes=400, context_length=200),
)
LOADED, LOADING, UNLOADED = ({"value": value, "args": []} for value in ("loaded", "loading", "unloaded"))
FAILED = {**UNLOADED, "failed": True, "exit_code": 1}
LLAMA_CPP = ("/models/load", "/models/unload")
LM_STUDIO = ("/api/v1/models/load", "/api/v1/models/unload")


class Router:
    """The application over a real registry whose engines do what the workshop says."""

    def __init__(self, workshop, registry, http):
        self.workshop = workshop
        self.registry = registry
        self.http = http

    async def ask(self, method, path, body=None, **options):
        async with self.http.request(method, path, json=body, **options) as answer:
            return answer.status, await answer.json()

    async def load(self, name):
        return await self.ask("POST", "/models/load", {"model": name})

    async def unload(self, name):
        return await self.ask("POST", "/models/unload", {"model": name})

    async def statuses(self):
        _, listed = await self.ask("GET", "/models")
        return {model["id"]: model["status"] for model in listed["data"]}

    async def studio(self):
        _, listed = await self.ask("GET", "/api/v1/models")
        return {model["key"]: model for model in listed["models"]}

    def state(self, name="m"):
        return str(self.registry.model(name).state)

    async def reaches(self, state, name="m"):
        await until(lambda: self.state(name) == state)


@asynccontextmanager
async def routing(**options):
    workshop = Workshop(**options)
    registry = ModelRegistry(
        SPECS,
        Policy(),
        workshop,
        lambda *, fresh: MemoryReading(100, "memory.ceiling", 0, 0),
        load_need=lambda spec: spec.weight_bytes,
    )
    services = Services(
        registry=registry,
        live=live(Settings(), SPECS),
        reloader=SimpleNamespace(),
        tokenizers=TokenizerThreads(1),
        running=RunningRequests(),
        guard=SimpleNamespace(),
        books=SimpleNamespace(),
        keys=KeyRing(Path("/nowhere"), ()),
    )
    async with (
        listening(make_application(services)) as port,
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http,
    ):
        yield Router(workshop, registry, http)
    for engines in workshop.engines.values():
        for engine in engines:
            engine.loading.set()
            engine.closing.set()
    assert await registry.close(1)


async def test_a_router_lists_every_name_as_openai_does_with_the_status_of_its_model():
    async with routing() as router:
        assert (await router.ask("GET", "/models"))[1] == (await router.ask("GET", "/v1/models"))[1]
        assert await router.statuses() == dict.fromkeys(("m", "org/embed", "vast", "gpt-4o", "m-cold"), UNLOADED)
        _, listed = await router.ask("GET", "/models")
        assert [model["meta"] for model in listed["data"] if model["id"] == "m"] == [{"n_ctx": 100, "size": 40}]


async def test_a_load_is_answered_at_once_and_seen_in_the_status():
    async with routing(hold_loads=True) as router:
        assert await within(router.load("m")) == (200, {"success": True})
        assert (await router.statuses())["m"] == LOADING
        router.workshop.last("m").loading.set()
        await router.reaches("ready")
        assert (await router.statuses())["m"] == LOADED


@pytest.mark.parametrize("name", ["gpt-4o", "m-cold", "M", "m:latest"])
async def test_a_model_is_loaded_and_unloaded_by_any_of_its_names(name):
    async with routing() as router:
        assert await router.load(name) == (200, {"success": True})
        await router.reaches("ready")
        assert await router.statuses() == {
            **dict.fromkeys(("m", "gpt-4o", "m-cold"), LOADED),
            **dict.fromkeys(("org/embed", "vast"), UNLOADED),
        }
        assert await router.unload(name) == (200, {"success": True})
        assert (await router.statuses())[name if name in ("gpt-4o", "m-cold") else "m"] == UNLOADED


async def test_a_failed_load_is_told_in_the_status():
    async with routing() as router:
        router.workshop.failures["m"] = LoadError(LoadFailure.BAD_FILES, "no weights")
        assert await router.load("m") == (200, {"success": True})
        await router.reaches("failed")
        assert (await router.statuses())["m"] == FAILED


async def test_a_model_that_can_never_fit_is_refused_rather_than_promised():
    async with routing() as router:
        status, answer = await within(router.load("vast"))
        assert (status, answer["error"]["code"]) == (507, "model_too_large")
        assert answer["error"]["details"]["needed_bytes"] == 400
        assert router.workshop.count("vast") == 0


async def test_to_load_twice_is_one_load_and_to_unload_what_is_not_there_is_no_fault():
    async with routing() as router:
        assert await router.unload("m") == (200, {"success": True})
        assert await asyncio.gather(*[router.load("m") for _ in range(8)]) == [(200, {"success": True})] * 8
        await router.reaches("ready")
        assert await router.load("m") == (200, {"success": True})
        assert router.workshop.count("m") == 1


async def test_an_unload_is_answered_when_the_model_is_gone():
    async with routing(hold_closes=True) as router:
        await router.load("m")
        await router.reaches("ready")
        leaving = [asyncio.ensure_future(router.unload(name)) for name in ("m", "gpt-4o")]
        await router.reaches("unloading")
        assert (await router.statuses())["m"] == LOADED
        router.workshop.last("m").closing.set()
        assert await within(asyncio.gather(*leaving)) == [(200, {"success": True})] * 2
        assert (await router.statuses())["m"] == UNLOADED


async def test_a_model_in_use_drains_before_it_goes():
    async with routing() as router:
        async with router.registry.lease("m"):
            leaving = asyncio.ensure_future(router.unload("m"))
            await router.reaches("draining")
            assert (await router.statuses())["m"] == LOADED
            assert not leaving.done()
        assert await within(leaving) == (200, {"success": True})
        assert router.state() == "unloaded"


async def test_a_model_in_use_for_long_goes_on_draining_after_the_answer(monkeypatch):
    monkeypatch.setattr(unloading, "PATIENCE", 0.02)
    async with routing() as router:
        async with router.registry.lease("m"):
            assert await within(router.unload("m")) == (200, {"success": True})
            assert router.state() == "draining"
        await router.reaches("unloaded")


async def test_an_unload_ends_a_load_under_way():
    async with routing(hold_loads=True) as router:
        await router.load("m")
        await router.reaches("loading")
        assert await within(router.unload("m")) == (200, {"success": True})
        assert (router.state(), router.workshop.last("m").cancelled) == ("unloaded", True)


async def test_a_load_that_comes_during_an_unload_loads_again():
    async with routing(hold_closes=True) as router:
        await router.load("m")
        await router.reaches("ready")
        leaving = asyncio.ensure_future(router.unload("m"))
        await router.reaches("unloading")
        assert await within(router.load("m")) == (200, {"success": True})
        router.workshop.last("m").closing.set()
        assert await within(leaving) == (200, {"success": True})
        await router.reaches("ready")
        assert router.workshop.count("m") == 2


async def test_clients_that_load_and_unload_at_once_leave_the_model_in_one_piece():
    async with routing() as router:
        calls = [call(name) for _ in range(10) for call in (router.load, router.unload) for name in ("m", "gpt-4o")]
        assert await within(asyncio.gather(*calls)) == [(200, {"success": True})] * len(calls)
        await until(lambda: router.state() in ("ready", "unloaded"))
        assert router.registry.waiting() == ()


async def test_lm_studio_is_told_of_every_name_and_what_is_loaded():
    async with routing() as router:
        await router.load("m")
        await router.reaches("ready")
        models = await router.studio()
    assert set(models) == {"m", "org/embed", "vast", "gpt-4o", "m-cold"}
    assert models["m"] == {
        "type": "llm",
        "publisher": "",
        "key": "m",
        "display_name": "m",
        "size_bytes": 40,
        "loaded_instances": [{"id": "m", "config": {"context_length": 100}}],
        "max_context_length": 100,
        "architecture": None,
        "quantization": None,
        "capabilities": {"trained_for_tool_use": False, "vision": False},
        "format": "mlx",
        "params_string": None,
        "description": None,
    }
    assert models["gpt-4o"]["loaded_instances"][0]["id"] == "gpt-4o"
    embed = models["org/embed"]
    assert (embed["type"], embed["publisher"], embed["display_name"]) == ("embedding", "org", "embed")
    assert (embed["loaded_instances"], "capabilities" in embed) == ([], False)


async def test_lm_studios_load_is_answered_when_the_model_is_ready():
    async with routing(hold_loads=True) as router:
        body = {"model": "gpt-4o", "context_length": 64, "echo_load_config": True}
        loading = asyncio.ensure_future(router.ask("POST", "/api/v1/models/load", body))
        await router.reaches("loading")
        assert not loading.done()
        router.workshop.last("m").loading.set()
        status, answer = await within(loading)
        seconds = answer.pop("load_time_seconds")
        assert status == 200
        assert seconds >= 0
        assert answer == {
            "type": "llm",
            "instance_id": "m",
            "status": "loaded",
            "load_config": {"context_length": 100},
        }
        unloaded = await router.ask("POST", "/api/v1/models/unload", {"instance_id": answer["instance_id"]})
        assert unloaded == (200, {"instance_id": "m"})
        assert router.state() == "unloaded"


async def test_lm_studios_load_says_which_fields_have_no_effect():
    async with routing() as router:
        body = {"model": "org/embed", "flash_attention": True, "num_experts": None, "eval_batch_size": 512}
        async with router.http.post("/api/v1/models/load", json=body) as answer:
            assert answer.status == 200
            assert answer.headers["X-Mlxd-Ignored"] == "flash_attention, eval_batch_size"
            assert "load_config" not in await answer.json()


async def test_lm_studios_load_tells_what_keeps_a_model_from_being_loaded():
    async with routing() as router:
        router.workshop.failures["m"] = LoadError(LoadFailure.BAD_FILES, "no weights")
        status, answer = await within(router.ask("POST", "/api/v1/models/load", {"model": "m"}))
        assert status == 503
        assert "no weights" in json.dumps(answer)
        status, answer = await within(router.ask("POST", "/api/v1/models/load", {"model": "vast"}))
        assert status == 507


NO_NAMES = [None, 1, True, 1.5, "", [], ["m"], {}, {"name": "m"}]
STRANGE_NAMES = [
    "../m",
    "/etc/passwd",
    "..\\m",
    "m/../m",
    "./m",
    "m\x00",
    "~",
    "file:///m",
    "*",
    "m" * 5000,
    "\u202em",
    " m",
]


@pytest.mark.parametrize("path", [*LLAMA_CPP, *LM_STUDIO])
async def test_what_is_no_name_of_a_model_is_refused_with_its_field(path):
    field = "instance_id" if path == "/api/v1/models/unload" else "model"
    async with routing() as router:
        for name in NO_NAMES:
            status, answer = await router.ask("POST", path, {field: name})
            assert (status, field in json.dumps(answer)) == (400, True), (name, answer)
            assert path in LM_STUDIO or answer["error"]["param"] == field
        for name in STRANGE_NAMES:
            status, answer = await router.ask("POST", path, {field: name})
            assert status == 404, (name, answer)
            assert path in LM_STUDIO or answer["error"]["param"] == "model"
        for body in ({}, {"name": "m"}):
            status, answer = await router.ask("POST", path, body)
            assert status == 400, answer
        status, answer = await router.ask("POST", path, {field: "m", "surprise": 1})
        assert (status, "surprise" in json.dumps(answer)) == (400, True)
        assert router.workshop.engines == {}


@pytest.mark.parametrize("path", [*LLAMA_CPP, *LM_STUDIO])
async def test_what_is_no_object_is_refused(path):
    async with routing() as router:
        for body in (None, [], "m", 1, ["m"]):
            status, _ = await router.ask("POST", path, body)
            assert status == 400, body
        for data in (b"{", b"\xff", b'{"model": NaN}', b"[" * 100_000):
            headers = {"Content-Type": "application/json"}
            async with router.http.post(path, data=data, headers=headers) as answer:
                assert answer.status == 400, data[:10]
        async with router.http.post(path, data="model=m", headers={"Content-Type": "text/plain"}) as answer:
            assert answer.status == 415
        async with router.http.get(path) as answer:
            assert answer.status == 405


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("context_length", [0, -1, 101, 2**63, 1.5, "64", True, [64]]),
        ("echo_load_config", [1, "true", []]),
        ("flash_attention", [1, "yes"]),
        ("offload_kv_cache_to_gpu", [0, "no"]),
        ("eval_batch_size", [0, "512", 0.5]),
        ("num_experts", [0, {}]),
    ],
)
async def test_lm_studios_load_refuses_a_bad_value_with_its_field(field, values):
    async with routing() as router:
        for value in values:
            status, answer = await router.ask("POST", "/api/v1/models/load", {"model": "m", field: value})
            assert (status, field in json.dumps(answer)) == (400, True), (value, answer)
        assert router.workshop.engines == {}
