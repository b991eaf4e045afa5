"""Readiness is progress, and whoever only looks is never held up by what makes none."""

import asyncio
import time
from contextlib import asynccontextmanager
from types import SimpleNamespace

import aiohttp
import pytest
from api_fakes import serving
from daemon_process import Api
from hanging_daemon import hanging_daemon

from mlxd.daemon.settings import MemorySettings, SupervisionSettings
from mlxd.registry import events as ev
from mlxd.registry.driver import Driver
from mlxd.registry.residency import MemoryReading, Policy, Purpose, Residency, Resident, Waiter

READS = (
    "/health",
    "/metrics",
    "/admin/models",
    "/admin/models/alpha",
    "/admin/requests",
    "/admin/memory",
    "/admin/explain/alpha",
    "/admin/decisions",
    "/admin/config",
    "/v1/models",
    "/api/ps",
)
# Seconds in which all of them are read; a busy machine takes its time.
PROMPTLY = 3.0


def at_a_step_for(seconds):
    return {"m": SimpleNamespace(stats=lambda: SimpleNamespace(heartbeat_age_s=seconds))}


async def readiness(served):
    async with aiohttp.ClientSession(served.url) as http, http.get("/health/ready") as answer:
        return answer.status, (await answer.json())["reasons"]


async def test_a_daemon_is_ready_while_everything_gets_on():
    async with serving() as served:
        served.registry.loaded = at_a_step_for(59.9)
        assert await readiness(served) == (200, [])


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, "the engine of m has not finished a step for 60 s"),
        ({"supervision": SupervisionSettings(hang_timeout=60.0)}, "the engine of m has not finished a step for 30 s"),
        ({"supervision": SupervisionSettings(hang_timeout=None)}, "the engine of m has not finished a step for 60 s"),
    ],
    ids=["default", "half of hang_timeout", "never given up"],
)
async def test_an_engine_makes_no_progress_some_time_before_it_is_given_up(settings, says):
    age = float(says.split()[-2])
    async with serving(**settings) as served:
        served.registry.loaded = at_a_step_for(age - 0.01)
        assert await readiness(served) == (200, [])
        served.registry.loaded = at_a_step_for(age)
        assert await readiness(served) == (503, [says])


@pytest.mark.parametrize(
    ("attribute", "value", "says"),
    [("closing", True, "the daemon is shutting down"), ("overdue", 7.0, "the planner is late by 7 s")],
)
async def test_the_registry_has_to_get_on(attribute, value, says):
    async with serving() as served:
        setattr(served.registry, attribute, value)
        assert await readiness(served) == (503, [says])


async def test_an_event_loop_that_is_late_is_not_ready():
    async with serving(loop_lag=8.0) as served:
        assert await readiness(served) == (503, ["the event loop is late by 8 s"])


@pytest.mark.parametrize(("poll", "bound"), [(0.5, 10.0), (60.0, 180.0)])
async def test_memory_has_to_be_measured_now_and_then(poll, bound):
    async with serving(memory=MemorySettings(poll_interval=poll)) as served:
        latest = served.services.guard.latest = SimpleNamespace(at=served.services.clock() - bound + 5)
        assert await readiness(served) == (200, [])
        latest.at -= 6
        assert await readiness(served) == (503, [f"memory could not be measured for {bound + 1:.0f} s"])
        served.services.guard.latest = None
        assert await readiness(served) == (503, ["memory was not measured yet"])


@pytest.mark.virtual_time
async def test_the_planner_is_late_once_something_was_due_and_nothing_came_of_it():
    now = asyncio.get_running_loop().time()
    passed = 0.0
    state = Residency(Policy(), MemoryReading(100, "memory.soft", 0, 0), {"m": Resident("m", 10)})
    driver = Driver(state, lambda *, fresh: state.memory, lambda _: None, lambda: now + passed)
    assert driver.overdue == 0
    driver.post(ev.Wanted(Waiter(1, "m", now, Purpose.LEASE, now + 30)))
    passed = 29.0
    assert driver.overdue == 0
    passed = 37.0
    assert driver.overdue == 7
    driver.post(ev.Tick())
    assert driver.overdue == 0
    driver.stop()


@pytest.fixture
def models(models_dir, micro_model):
    return models_dir({"alpha": micro_model, "beta": micro_model})


@asynccontextmanager
async def hanging(api, faults, place):
    """alpha hangs there, and goes on at the end."""
    if place != "load":
        await api.text("alpha")
    faults.hold(f"{place}-alpha")
    call = api.call("POST", "/admin/models/alpha/unload", {}) if place == "close" else api.chat("alpha")
    waiting = asyncio.create_task(call)
    await faults.met(f"{place}-alpha")
    try:
        yield
    finally:
        faults.let_go(f"{place}-alpha")
        assert (await waiting)[0] == 200


async def test_reads_are_prompt_while_an_engine_hangs_wherever_that_is(tmp_path, models):
    with hanging_daemon(tmp_path / "d", models, "[residency]\nmax_loading = 2\n") as (running, faults):
        async with Api(running.url) as api:
            for place, state in (("load", "loading"), ("step", "ready"), ("close", "unloading")):
                async with hanging(api, faults, place):
                    assert (await api.get("/admin/models/alpha"))["state"] == state
                    await reads_are_prompt(running.url)
                    assert await api.text("beta")


async def reads_are_prompt(url):
    async with aiohttp.ClientSession(url) as http:
        started = time.monotonic()
        for path in READS:
            async with asyncio.timeout(PROMPTLY), http.get(path) as answer:
                assert answer.status == 200, path
                await answer.read()
        assert time.monotonic() - started < PROMPTLY


async def test_readiness_says_that_a_step_takes_long_before_the_engine_is_given_up(tmp_path, models):
    with hanging_daemon(tmp_path / "d", models, '[supervision]\nhang_timeout = "4s"\n') as (running, faults):
        async with Api(running.url) as api:
            faults.hold("step-alpha")
            answering = asyncio.create_task(api.chat("alpha"))
            async with asyncio.timeout(10):
                while (answer := await api.call("GET", "/health/ready"))[0] == 200:
                    await asyncio.sleep(0.05)
            [reason] = answer[1]["reasons"]
            assert reason.startswith("the engine of alpha has not finished a step for ")
            assert await api.text("beta")
            faults.let_go("step-alpha")
            assert (await answering)[0] == 200
            assert (await api.get("/health/ready"))["status"] == "ready"
