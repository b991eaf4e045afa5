"""Dead engines in a whole registry: who is served by the restart, who is refused, what is told and kept."""

import asyncio
from pathlib import Path

import pytest
from fake_engine import Workshop
from structlog.testing import capture_logs
from virtual_time import now, passes, settled

from mlxd.daemon.metrics import Metrics
from mlxd.engines.errors import EngineDead, LoadError, LoadFailure
from mlxd.registry.deaths import QUARANTINE
from mlxd.registry.errors import ModelLoadFailed
from mlxd.registry.registry import ModelRegistry
from mlxd.registry.residency import MemoryReading, Policy
from mlxd.registry.spec import ModelSpec

pytestmark = pytest.mark.virtual_time

# What the wall clock is ahead of the loop's.
EPOCH = 5000.0


@pytest.fixture
def workshop() -> Workshop:
    return Workshop()


def make(workshop: Workshop) -> ModelRegistry:
    return ModelRegistry(
        [ModelSpec("a", Path("a"), weight_bytes=40)],
        Policy(retry_backoff=5.0),
        workshop,
        lambda *, fresh: MemoryReading(100, "memory.ceiling", 0, 0),
        load_need=lambda spec: spec.weight_bytes,
        clock=now,
        wall_clock=lambda: now() + EPOCH,
    )


async def use(registry: ModelRegistry) -> int:
    """The number of the load that served."""
    async with registry.lease("a") as lease:
        return lease.generation


async def die(workshop: Workshop, *suspects: str, **facts: object) -> None:
    """The engine dies at work, and all that follows at once has followed."""
    workshop.last("a").on_dead(EngineDead("the worker of a is gone", facts=facts, suspects=suspects))
    await settled()


def kinds(registry: ModelRegistry) -> list[str]:
    return [decision.kind for decision in registry.last_decisions(100)]


async def test_a_request_after_a_death_is_served_by_a_new_engine_at_once(workshop):
    registry = make(workshop)
    assert await use(registry) == 1
    started = now()
    await die(workshop, "poison", signal="SIGKILL")
    assert registry.model("a").state == "failed"
    assert await use(registry) == 2
    assert now() == started
    assert kinds(registry) == ["load", "abort", "restart"]


async def test_what_is_known_of_a_death_is_kept_with_the_decisions(workshop):
    registry = make(workshop)
    await use(registry)
    await die(workshop, "poison", signal="SIGKILL", step_age_s=2.0)
    await use(registry)
    abort, restart = registry.last_decisions(2)
    known = {"deaths": 1, "facts": {"signal": "SIGKILL", "step_age_s": 2.0}, "suspects": {"poison": 1}}
    for decision in (abort, restart):
        assert {key: decision.inputs[key] for key in known} == known


async def test_who_waits_through_a_death_is_served_by_the_restart(workshop):
    registry = make(workshop)
    workshop.hold_closes = True
    await use(registry)
    await die(workshop)
    waiting = asyncio.create_task(use(registry))
    await settled()
    assert registry.model("a").state == "unloading"
    workshop.last("a").closing.set()
    assert await waiting == 2


async def test_a_dead_engine_is_closed_before_its_model_is_loaded_again(workshop):
    registry = make(workshop)
    await use(registry)
    await die(workshop)
    await use(registry)
    first, second = workshop.engines["a"]
    assert (len(first.closed_with), len(second.closed_with)) == (1, 0)


async def test_from_the_second_death_on_requests_are_told_when_to_come_back(workshop):
    registry = make(workshop)
    for _ in range(2):
        await use(registry)
        await die(workshop, "poison")
    with pytest.raises(ModelLoadFailed) as refused:
        await use(registry)
    assert refused.value.retry_after == 5.0
    failure = refused.value.failure
    assert (failure.reason, failure.attempts, failure.retry_at) == ("crashed", 2, now() + 5.0 + EPOCH)
    assert registry.model("a").failure == failure
    await passes(5.0)
    assert await use(registry) == 3
    assert registry.model("a").failure is None


async def test_a_pinned_model_comes_back_by_itself_and_is_not_queued_for_anybody(workshop):
    registry = make(workshop)
    await registry.load("a", pinned=True)
    await die(workshop)
    assert registry.model("a").state == "ready"
    workshop.hold_loads = True
    await die(workshop)
    assert registry.model("a").state == "failed"
    await passes(5.0)
    model = registry.model("a")
    assert (model.state, model.queued) == ("loading", 0)
    workshop.last("a").loading.set()
    await settled()
    assert registry.model("a").state == "ready"
    assert workshop.count("a") == 3


async def test_a_pinned_model_that_keeps_dying_stays_away_until_an_operator_loads_it(workshop):
    registry = make(workshop)
    await registry.load("a", pinned=True)
    for _ in range(QUARANTINE):
        await die(workshop, "poison")
        await passes(60.0)
    assert registry.model("a").state == "failed"
    assert "`mlxd load a`" in registry.model("a").failure.message
    await passes(3600.0)
    assert workshop.count("a") == QUARANTINE
    await registry.load("a")
    assert registry.model("a").state == "ready"
    await die(workshop)
    assert registry.model("a").state == "ready"


async def test_a_load_that_crashes_keeps_what_is_known_of_it(workshop):
    registry = make(workshop)
    broken = LoadError(LoadFailure.CRASHED, "the worker of a is gone")
    broken.__cause__ = EngineDead("the worker of a is gone", facts={"exit_code": 3})
    workshop.failures["a"] = broken
    with pytest.raises(ModelLoadFailed, match="the worker of a is gone; exit code 3"):
        await use(registry)
    await passes(5.0)
    del workshop.failures["a"]
    assert await use(registry) == 2
    (restart,) = [decision for decision in registry.last_decisions(100) if decision.kind == "restart"]
    assert restart.inputs["facts"] == {"exit_code": 3}


async def test_a_death_between_the_end_of_a_load_and_its_news_is_not_lost(workshop):
    registry = make(workshop)
    workshop.hold_loads = True
    waiting = asyncio.create_task(use(registry))
    await settled()
    workshop.last("a").loading.set()
    workshop.last("a").on_dead(EngineDead("the worker of a is gone"))
    await waiting
    await settled()
    assert registry.model("a").state == "failed"
    assert registry.model("a").failure.reason == "crashed"


async def test_the_death_of_an_engine_that_was_replaced_is_nothing_to_the_next(workshop):
    registry = make(workshop)
    await use(registry)
    await registry.unload("a")
    old = workshop.last("a")
    workshop.hold_loads = True
    waiting = asyncio.create_task(use(registry))
    await settled()
    old.on_dead(EngineDead("late"))
    workshop.last("a").loading.set()
    await waiting
    assert registry.model("a").state == "ready"


async def test_an_unload_of_a_model_that_died_returns(workshop):
    registry = make(workshop)
    workshop.hold_closes = True
    await registry.load("a", pinned=True)
    await die(workshop)
    unloading = asyncio.create_task(registry.unload("a"))
    await settled()
    workshop.last("a").closing.set()
    await unloading
    await passes(3600.0)
    assert (registry.model("a").state, workshop.count("a")) == ("failed", 1)


async def test_a_death_is_logged_with_its_suspects(workshop):
    registry = make(workshop)
    await use(registry)
    with capture_logs() as logs:
        await die(workshop, "poison")
    (line,) = [line for line in logs if line["event"] == "model.engine_died"]
    assert (line["model"], line["suspects"], line["log_level"]) == ("a", ("poison",), "warning")


async def test_restarts_are_counted_and_ordinary_loads_are_not(workshop):
    registry = make(workshop)
    metrics = Metrics()
    registry.decisions.on_decision = metrics.decided
    await use(registry)
    assert b'mlxd_worker_restarts_total{model="a"}' not in metrics.text()
    for _ in range(2):
        await die(workshop)
        await passes(5.0)
        await use(registry)
    assert b'mlxd_worker_restarts_total{model="a"} 2.0' in metrics.text()


async def test_a_registry_that_closes_brings_nothing_back(workshop):
    registry = make(workshop)
    await registry.load("a", pinned=True)
    for _ in range(2):
        await die(workshop)
    assert await registry.close(10.0)
    await passes(3600.0)
    assert workshop.count("a") == 2
