"""The registry acts on what the planner decides: leases, single loads, cancellation, unloads, the end."""

import asyncio
import contextlib
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path

import pytest
from fake_engine import Workshop
from virtual_time import now, passes, settled

from mlxd.engines.errors import EngineDead, LoadError, LoadFailure
from mlxd.engines.types import LoadProgress, PrefillEvictionRequest
from mlxd.registry.errors import (
    LoadNotRunning,
    ModelLoadFailed,
    ModelRemoved,
    ModelTooLarge,
    ModelUnloaded,
    ModelWaitTimeout,
    ShuttingDown,
)
from mlxd.registry.registry import ModelRegistry
from mlxd.registry.residency import MemoryReading, Policy
from mlxd.registry.spec import ModelSpec

pytestmark = pytest.mark.virtual_time

# What the wall clock is ahead of the loop's.
EPOCH = 5000.0


def make(workshop: Workshop, *names: str, limit: int = 100, size: int = 40, **options) -> ModelRegistry:
    specs = [ModelSpec(name, Path(name), weight_bytes=size) for name in names]
    policy = options.pop("policy", Policy())
    return ModelRegistry(
        specs,
        policy,
        workshop,
        lambda *, fresh: MemoryReading(limit, "memory.ceiling", 0, 0),
        load_need=lambda spec: spec.weight_bytes,
        clock=options.pop("clock", now),
        wall_clock=lambda: now() + EPOCH,
        **options,
    )


@pytest.fixture
def workshop() -> Workshop:
    return Workshop()


def states(registry: ModelRegistry) -> dict[str, str]:
    return {model.spec.name: str(model.state) for model in registry.models()}


async def test_a_lease_loads_the_model_and_counts_until_it_is_left(workshop):
    registry = make(workshop, "a")
    async with registry.lease("a") as lease:
        assert lease.engine is workshop.last("a")
        assert registry.model("a").leases == 1
    assert registry.model("a").leases == 0
    assert states(registry) == {"a": "ready"}


async def test_fifty_first_requests_share_one_load(workshop):
    workshop.hold_loads = True
    registry = make(workshop, "a")
    enough = asyncio.Event()

    async def use() -> None:
        async with registry.lease("a"):
            await enough.wait()

    tasks = [asyncio.create_task(use()) for _ in range(50)]
    await settled()
    assert registry.model("a").queued == 50
    for task in tasks[:25]:
        task.cancel()
    await settled()
    workshop.last("a").loading.set()
    await settled()
    assert registry.model("a").leases == 25
    enough.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(isinstance(result, asyncio.CancelledError) for result in results) == 25
    assert workshop.count("a") == 1
    assert registry.model("a").leases == 0


async def test_a_load_survives_the_request_that_started_it(workshop):
    workshop.hold_loads = True
    registry = make(workshop, "a")
    first = asyncio.create_task(registry.lease("a").__aenter__())
    second = asyncio.create_task(registry.lease("a").__aenter__())
    await settled()
    first.cancel()
    await settled()
    workshop.last("a").loading.set()
    assert (await second).engine is workshop.last("a")


async def test_a_reader_cancelled_in_the_moment_of_its_grant_leaves_no_lease(workshop):
    workshop.hold_loads = True
    registry = make(workshop, "a")
    task = asyncio.create_task(registry.lease("a").__aenter__())
    await settled()
    granted = []

    def cancel_when_granted(_: object) -> None:
        if registry.model("a").leases:  # and the reader has not run yet
            granted.append(task.cancel())

    registry.on_models = cancel_when_granted
    workshop.last("a").loading.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert granted == [True]
    assert registry.model("a").leases == 0


async def test_a_ready_model_is_leased_while_another_loads(workshop):
    registry = make(workshop, "a", "b")
    async with registry.lease("a"):
        pass
    workshop.hold_loads = True
    waiting = asyncio.create_task(registry.lease("b").__aenter__())
    await settled()
    assert states(registry)["b"] == "loading"
    async with registry.lease("a"):
        assert not waiting.done()
    workshop.last("b").loading.set()
    await waiting


async def test_the_third_model_evicts_the_least_recently_used_idle_one(workshop):
    registry = make(workshop, "a", "b", "c")
    for name in ("a", "b", "a"):
        async with registry.lease(name):
            await passes(1)
    async with registry.lease("c"):
        assert states(registry) == {"a": "ready", "b": "unloaded", "c": "ready"}
    evictions = [d for d in registry.last_decisions(100) if d.kind == "evict"]
    assert [(d.model, d.for_model, d.reason) for d in evictions] == [("b", "c", "lru")]


async def test_neither_pinned_nor_busy_models_are_evicted(workshop):
    registry = make(workshop, "a", "b", "c")
    await registry.load("a", pinned=True)
    async with registry.lease("b"):
        began = now()
        with pytest.raises(ModelWaitTimeout):
            async with registry.lease("c", max_wait=10):
                pass
        assert now() - began == 10
        assert states(registry) == {"a": "ready", "b": "ready", "c": "unloaded"}
    async with registry.lease("c", max_wait=1):
        assert states(registry) == {"a": "ready", "b": "unloaded", "c": "ready"}


async def test_a_model_that_can_never_fit_is_refused_and_nobody_leaves(workshop):
    registry = make(workshop, "a", "b", limit=50)
    async with registry.lease("a"):
        pass
    huge = make(workshop, "a", limit=39)
    with pytest.raises(ModelTooLarge):
        async with huge.lease("a"):
            pass
    assert states(registry)["a"] == "ready"


async def test_a_failed_load_is_told_and_kept(workshop):
    workshop.failures["a"] = LoadError(LoadFailure.BAD_FILES, "model.safetensors is truncated")
    registry = make(workshop, "a")
    with pytest.raises(ModelLoadFailed) as failed:
        async with registry.lease("a"):
            pass
    assert failed.value.failure.reason == "bad_files"
    assert failed.value.failure.retry_at == now() + EPOCH + 5
    model = registry.model("a")
    assert model.state == "failed"
    assert model.failure.message == "model.safetensors is truncated"
    with pytest.raises(ModelLoadFailed):
        async with registry.lease("a"):
            pass
    assert workshop.count("a") == 1
    workshop.failures.clear()
    assert (await registry.load("a")).state == "ready"
    assert registry.model("a").failure is None


async def test_an_engine_that_breaks_while_loading_is_one_failed_load(workshop):
    workshop.failures["a"] = ZeroDivisionError("a bug")
    registry = make(workshop, "a", "b")
    with pytest.raises(ModelLoadFailed, match="ZeroDivisionError"):
        async with registry.lease("a"):
            pass
    async with registry.lease("b"):
        assert states(registry) == {"a": "failed", "b": "ready"}


async def test_a_load_without_progress_has_stalled(workshop):
    workshop.hold_loads = True
    registry = make(workshop, "a", stall_timeout=120)
    began = now()
    with pytest.raises(ModelLoadFailed) as failed:
        async with registry.lease("a", max_wait=1000):
            pass
    assert now() - began == 120
    assert failed.value.failure.reason == "stalled"
    assert workshop.last("a").closed_with


async def test_progress_puts_the_stall_off(workshop):
    workshop.hold_loads = True
    registry = make(workshop, "a", stall_timeout=120)
    loading = asyncio.create_task(registry.load("a"))
    for step in (1, 2):
        await passes(119)
        workshop.last("a").progress(LoadProgress(10 * step, 40))
    await passes(119)
    assert states(registry) == {"a": "loading"}
    await passes(1)
    assert states(registry) == {"a": "failed"}
    with pytest.raises(ModelLoadFailed, match="120 s"):
        await loading


async def test_a_stalled_load_may_go_on_while_it_is_closed(workshop):
    workshop.hold_loads = workshop.hold_closes = True
    registry = make(workshop, "a", stall_timeout=120)
    loading = asyncio.create_task(registry.load("a"))
    await passes(120)
    assert workshop.last("a").closed_with
    workshop.last("a").progress(LoadProgress(10, 40))
    workshop.last("a").closing.set()
    with pytest.raises(ModelLoadFailed):
        await loading


async def test_a_load_in_progress_shows_bytes_and_can_be_cancelled(workshop):
    workshop.hold_loads = True
    registry = make(workshop, "a")
    waiting = asyncio.create_task(registry.lease("a").__aenter__())
    await settled()
    workshop.last("a").progress(LoadProgress(10, 40))
    assert registry.model("a").load.progress == LoadProgress(10, 40)
    registry.cancel_load("a")
    with pytest.raises(ModelLoadFailed) as failed:
        await waiting
    assert failed.value.failure.reason == "cancelled"
    await settled()
    assert states(registry) == {"a": "unloaded"}
    with pytest.raises(LoadNotRunning):
        registry.cancel_load("a")


@pytest.mark.parametrize("force", [False, True])
async def test_an_unload_does_not_wait_for_a_load_that_does_not_stop(workshop, force):
    workshop.hold_loads = True
    registry = make(workshop, "a", policy=Policy(unload_timeout=30.0), stall_timeout=120.0)
    waiting = asyncio.create_task(registry.lease("a").__aenter__())
    await settled()
    workshop.last("a").cancel_load = lambda: None
    started = now()
    assert (await registry.unload("a", force=force)).freed_bytes == 0
    assert now() - started == 30.0
    await settled()
    assert states(registry) == {"a": "unloaded"}
    with pytest.raises(ModelLoadFailed):
        await waiting


async def test_progress_after_a_cancel_does_not_put_its_end_off(workshop):
    workshop.hold_loads = True
    registry = make(workshop, "a", policy=Policy(unload_timeout=30.0))
    waiting = asyncio.create_task(registry.lease("a").__aenter__())
    await settled()
    workshop.last("a").cancel_load = lambda: None
    registry.cancel_load("a")
    registry.cancel_load("a")
    await passes(20.0)
    workshop.last("a").progress(LoadProgress(10, 40))
    await passes(9.0)
    assert states(registry) == {"a": "loading"}
    await passes(1.0)
    assert states(registry) == {"a": "unloaded"}
    with pytest.raises(ModelLoadFailed):
        await waiting


@pytest.mark.parametrize("wait", [True, False])
async def test_a_load_that_is_refused_leaves_pin_and_ttl_as_they_were(workshop, wait):
    registry = make(workshop, "a", limit=10)
    with contextlib.suppress(ModelTooLarge):
        await registry.load("a", pinned=True, ttl=5.0, wait=wait)
    await settled()
    assert (registry.model("a").pinned, registry.model("a").ttl) == (False, None)


async def test_a_client_keeps_a_model_alive_until_it_leaves_memory(workshop):
    registry = make(workshop, "a")
    registry.keep_alive("a", 5.0)
    assert registry.model("a").ttl is None
    async with registry.lease("a"):
        registry.keep_alive("a", 5.0)
        await passes(9.0)
    assert (registry.model("a").ttl, states(registry)) == (5.0, {"a": "ready"})
    await passes(5.0)
    assert states(registry) == {"a": "unloaded"}
    assert registry.model("a").ttl is None


async def test_what_becomes_due_while_it_is_planned_happens(workshop):
    readings = count()
    registry = make(workshop, "a", clock=lambda: now() + next(readings) * 1e-6)  # time passes while anything is done
    async with registry.lease("a"):
        registry.keep_alive("a", 1e-9)
    await passes(1.0)
    assert states(registry) == {"a": "unloaded"}
    workshop.hold_loads = True
    for bound in range(1, 12):
        with pytest.raises(ModelWaitTimeout):
            async with registry.lease("a", max_wait=bound * 1e-6):
                pass


async def test_a_load_that_is_refused_takes_back_nothing_that_others_set_meanwhile(workshop):
    workshop.hold_loads = True
    registry = make(workshop, "a")
    loading = asyncio.create_task(registry.load("a", ttl=5.0))
    await settled()
    registry.set_policy("a", pinned=True)
    registry.cancel_load("a")
    with pytest.raises(ModelLoadFailed):
        await loading
    assert (registry.model("a").pinned, registry.model("a").ttl) == (True, None)


async def test_an_unattended_load_of_a_model_that_is_removed_ends_with_it(workshop):
    workshop.hold_loads = True
    registry = make(workshop, "a")
    await registry.load("a", pinned=True, wait=False)
    registry.reconfigure([], Policy(), stall_timeout=None, queue_timeout=None)
    await settled()
    assert states(registry) == {}


async def test_concurrent_unloads_share_one_and_say_what_was_freed(workshop):
    workshop.hold_closes = True
    registry = make(workshop, "a")
    async with registry.lease("a"):
        pass
    unloads = [asyncio.create_task(registry.unload("a")) for _ in range(3)]
    await settled()
    assert states(registry) == {"a": "unloading"}
    workshop.last("a").closing.set()
    assert [result.freed_bytes for result in await asyncio.gather(*unloads)] == [40, 40, 40]
    assert len(workshop.last("a").closed_with) == 1
    assert (await registry.unload("a")).freed_bytes == 0


async def test_a_drain_waits_for_the_lease_and_force_does_not(workshop):
    registry = make(workshop, "a")
    async with AsyncExitStack() as held:
        await held.enter_async_context(registry.lease("a"))
        draining = asyncio.create_task(registry.unload("a", timeout=30))
        await settled()
        assert states(registry) == {"a": "draining"}
        assert not draining.done()
        await registry.unload("a", force=True)
        assert isinstance(workshop.last("a").closed_with[0], ModelUnloaded)
        await draining
    assert registry.model("a").leases == 0


async def test_a_drain_cuts_off_at_its_deadline_and_not_before(workshop):
    registry = make(workshop, "a")
    async with registry.lease("a"):
        draining = asyncio.create_task(registry.unload("a", timeout=30))
        await passes(29)
        assert states(registry) == {"a": "draining"}
        assert workshop.last("a").closed_with == []
        await passes(1)
        assert states(registry) == {"a": "unloaded"}
        assert isinstance(workshop.last("a").closed_with[0], ModelUnloaded)
    await draining


async def test_a_request_during_an_unload_gets_the_next_load(workshop):
    workshop.hold_closes = True
    registry = make(workshop, "a")
    async with registry.lease("a"):
        pass
    unloading = asyncio.create_task(registry.unload("a"))
    await settled()
    waiting = asyncio.create_task(registry.lease("a").__aenter__())
    await settled()
    workshop.hold_closes = False
    workshop.last("a").closing.set()
    await unloading
    assert (await waiting).engine is workshop.engines["a"][1]


async def test_an_idle_model_expires(workshop):
    registry = make(workshop, "a")
    await registry.load("a", ttl=300)
    assert registry.model("a").unload_at == now() + EPOCH + 300
    await passes(299)
    assert states(registry) == {"a": "ready"}
    await passes(1)
    assert states(registry) == {"a": "unloaded"}
    assert registry.last_decisions(1)[0].kind == "expire"


async def test_reading_does_not_reset_the_idle_clock(workshop):
    registry = make(workshop, "a")
    async with registry.lease("a"):
        pass
    used = registry.model("a").last_used_at
    await passes(10)
    registry.models()
    registry.waiting()
    assert registry.model("a").last_used_at == used == now() + EPOCH - 10


async def test_a_dead_engine_is_closed_and_its_model_fails(workshop):
    registry = make(workshop, "a")
    async with registry.lease("a"):
        pass
    workshop.last("a").on_dead(EngineDead("three steps failed"))
    await settled()
    assert states(registry) == {"a": "failed"}
    assert registry.model("a").failure.reason == "crashed"


async def test_an_engine_that_does_not_close_is_reported_and_the_rest_goes_on(workshop):
    registry = make(workshop, "a", "b")
    async with registry.lease("a"):
        pass
    workshop.last("a").closes_in_time = False
    await registry.unload("a")
    await settled()
    assert states(registry)["a"] == "failed"
    async with registry.lease("b"):
        assert states(registry)["b"] == "ready"
    assert not await registry.close(1)


async def test_a_prompt_gets_room_from_idle_models(workshop):
    registry = make(workshop, "a", "b")
    async with registry.lease("a"):
        pass
    async with registry.lease("b"):
        await registry.make_room("b", PrefillEvictionRequest("r", 30, 0, "prefill"))
        assert states(registry) == {"a": "unloaded", "b": "ready"}
        await registry.make_room("b", PrefillEvictionRequest("r", 30, 0, "prefill"))
    assert [d.reason for d in registry.last_decisions(100) if d.kind == "evict"] == ["prefill"]


async def test_closing_drains_what_runs_refuses_what_waits_and_frees_engines(workshop):
    registry = make(workshop, "a", "b", "c")
    await registry.load("b", pinned=True)
    async with AsyncExitStack() as held:
        await held.enter_async_context(registry.lease("a"))
        waiting = asyncio.create_task(registry.lease("c").__aenter__())
        await settled()
        closing = asyncio.create_task(registry.close(30))
        with pytest.raises(ShuttingDown):
            await waiting
        with pytest.raises(ShuttingDown):
            async with registry.lease("a"):
                pass
        assert not closing.done()
    assert await closing
    assert states(registry) == {"a": "unloaded", "b": "unloaded", "c": "unloaded"}


async def test_closing_cuts_off_what_outlasts_the_drain(workshop):
    registry = make(workshop, "a")
    lease = registry.lease("a")
    await lease.__aenter__()
    began = now()
    assert await registry.close(20)
    assert now() - began == 20
    assert isinstance(workshop.last("a").closed_with[0], ShuttingDown)
    await lease.__aexit__(None, None, None)


async def test_a_load_that_is_not_waited_for_shows_its_failure_in_the_model(workshop):
    workshop.failures["a"] = LoadError(LoadFailure.UNSUPPORTED, "quantum9 not supported")
    registry = make(workshop, "a")
    assert (await registry.load("a", wait=False)).state == "loading"
    await settled()
    assert registry.model("a").failure.reason == "unsupported"


async def test_a_name_that_is_not_known_is_one_that_was_removed(workshop):
    registry = make(workshop, "a")
    with pytest.raises(ModelRemoved):
        registry.model("b")
