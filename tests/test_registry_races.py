"""Races of tasks, engines and cancellation that other model daemons had, one test each."""

import asyncio
from pathlib import Path

import pytest
from fake_engine import Workshop
from virtual_time import now, passes, settled

from mlxd.engines.errors import LoadError, LoadFailure
from mlxd.engines.types import LoadProgress
from mlxd.registry.errors import ModelLoadFailed, ModelWaitTimeout
from mlxd.registry.registry import ModelRegistry
from mlxd.registry.residency import MemoryReading, Policy
from mlxd.registry.spec import ModelSpec

pytestmark = pytest.mark.virtual_time


@pytest.fixture
def workshop() -> Workshop:
    return Workshop()


def make(workshop: Workshop, *names: str, size: int = 40, ttl: float | None = None, **options) -> ModelRegistry:
    """A registry with room for 100 bytes."""
    specs = [ModelSpec(name, Path(name), weight_bytes=size, ttl=ttl) for name in names]
    return ModelRegistry(
        specs,
        options.pop("policy", Policy()),
        workshop,
        lambda *, fresh: MemoryReading(100, "memory.ceiling", 0, 0),
        load_need=lambda spec: spec.weight_bytes,
        clock=now,
        **options,
    )


def states(registry: ModelRegistry) -> dict[str, str]:
    return {model.spec.name: str(model.state) for model in registry.models()}


async def use(registry: ModelRegistry, name: str, **options) -> str:
    """A request that answers at once; the engine it had."""
    async with registry.lease(name, **options) as lease:
        return lease.engine.spec.name


async def hold(registry: ModelRegistry, name: str, until: asyncio.Event) -> None:
    """A request that takes its time."""
    async with registry.lease(name):
        await until.wait()


async def test_the_first_requesters_cancel_hurts_no_other(workshop):
    """Seen in ollama #8398: it cancelled the load that others waited for."""
    workshop.hold_loads = True
    registry = make(workshop, "a")
    first, second = asyncio.create_task(use(registry, "a")), asyncio.create_task(use(registry, "a"))
    await settled()
    first.cancel()
    await settled()
    assert not workshop.last("a").cancelled
    workshop.last("a").loading.set()
    assert await second == "a"
    assert workshop.count("a") == 1


async def test_a_follower_that_is_cancelled_hurts_no_other(workshop):
    """Seen in vllm-mlx (read): all awaited one bare future, and the cancel of one cancelled it for all."""
    workshop.hold_loads = True
    registry = make(workshop, "a")
    tasks = [asyncio.create_task(use(registry, "a")) for _ in range(3)]
    await settled()
    tasks[1].cancel()
    await settled()
    workshop.last("a").loading.set()
    first, second, third = await asyncio.gather(*tasks, return_exceptions=True)
    assert (first, third) == ("a", "a")
    assert isinstance(second, asyncio.CancelledError)
    assert registry.model("a").leases == 0


async def test_a_load_runs_on_when_all_requests_are_cancelled_and_leaves_no_claim(workshop):
    """Seen in vllm-mlx (read): the cancel of the task that loaded skipped the release of its bytes."""
    workshop.hold_loads = True
    registry = make(workshop, "a", "b", size=80)
    tasks = [asyncio.create_task(use(registry, "a")) for _ in range(2)]
    await settled()
    for task in tasks:
        task.cancel()
    await settled()
    assert states(registry) == {"a": "loading", "b": "unloaded"}
    other = asyncio.create_task(use(registry, "b"))
    await settled()
    assert workshop.last("a").cancelled
    workshop.last("b").loading.set()
    assert await other == "b"
    assert states(registry) == {"a": "unloaded", "b": "ready"}


async def test_a_ready_model_is_leased_while_another_loads(workshop):
    """Seen in oMLX #1970 (a lock was held across the load): it took 2.9 s of a 3 s load of another model."""
    registry = make(workshop, "a", "b")
    await use(registry, "a")
    workshop.hold_loads = True
    loading = asyncio.create_task(use(registry, "b"))
    await settled()
    before = now()
    assert await use(registry, "a") == "a"
    assert now() == before
    workshop.last("b").loading.set()
    await loading


async def test_a_load_is_cancelled_while_it_runs(workshop):
    """Seen in oMLX (probe), llama-swap #1068 and unsloth PR #9893: the cancel needed the lock that the load held."""
    workshop.hold_loads = True
    registry = make(workshop, "a")
    waiting = asyncio.create_task(use(registry, "a"))
    await settled()
    registry.cancel_load("a")
    with pytest.raises(ModelLoadFailed):
        await waiting
    await settled()
    assert states(registry) == {"a": "unloaded"}


async def test_an_unload_during_a_load_ends_though_the_load_cannot_be_stopped(workshop):
    """Seen in oMLX (probe): an unload during a load was refused, and the model came up regardless."""
    workshop.hold_loads = True
    registry = make(workshop, "a")
    waiting = asyncio.create_task(use(registry, "a"))
    await settled()
    unloading = asyncio.create_task(registry.unload("a"))
    await settled()
    workshop.last("a").cancelled = False  # all was read when the cancel came
    await unloading
    assert states(registry) == {"a": "unloaded"}
    with pytest.raises(ModelLoadFailed):
        await waiting


async def test_an_unload_ends_though_its_model_is_wanted_again_before_it_is_gone(workshop):
    """Seen in ollama #17408: whoever waited for the unload waited for ever, as a request had revived the model."""
    workshop.hold_loads = True
    registry = make(workshop, "a")
    waiting = asyncio.create_task(use(registry, "a"))
    await settled()
    engine = workshop.last("a")
    engine.cancel_load = lambda: None  # too far along
    unloading = asyncio.create_task(registry.unload("a"))
    await settled()
    late = asyncio.create_task(use(registry, "a"))
    await settled()
    workshop.hold_loads = False
    engine.loading.set()
    assert await late == "a"
    with pytest.raises(ModelLoadFailed):
        await waiting
    await asyncio.wait_for(unloading, 60.0)


async def test_only_a_load_without_progress_is_stalled(workshop):
    """Seen in ollama #18123: a slow load of a large model was ended by a total timeout."""
    workshop.hold_loads = True
    registry = make(workshop, "a", stall_timeout=10.0, queue_timeout=None)
    waiting = asyncio.create_task(use(registry, "a"))
    await settled()
    for done in range(20):
        await passes(9.0)
        workshop.last("a").progress(LoadProgress(done, 40))
    assert states(registry) == {"a": "loading"}
    await passes(10.0)
    with pytest.raises(ModelLoadFailed) as failed:
        await waiting
    assert failed.value.failure.reason == "stalled"


async def test_a_stalled_load_gives_its_claim_back(workshop):
    """Seen in oMLX #3446: later loads were refused for the memory of one that had stalled."""
    workshop.hold_loads = True
    registry = make(workshop, "a", "b", size=80, stall_timeout=10.0)
    first = asyncio.create_task(use(registry, "a"))
    await settled()
    second = asyncio.create_task(use(registry, "b"))
    await passes(10.0)
    with pytest.raises(ModelLoadFailed):
        await first
    workshop.last("b").loading.set()
    assert await second == "b"


async def test_a_request_that_meets_the_unload_gets_the_next_engine(workshop):
    """Seen in oMLX #2431 and llama.cpp #28698: it got the one that was being torn down."""
    workshop.hold_closes = True
    registry = make(workshop, "a")
    await use(registry, "a")
    old = workshop.last("a")
    unloading = asyncio.create_task(registry.unload("a"))
    await settled()
    request = asyncio.create_task(use(registry, "a"))
    await settled()
    assert not request.done()
    old.closing.set()
    await unloading
    assert await request == "a"
    assert workshop.last("a") is not old


async def test_a_request_in_the_moment_of_its_ttl_is_served(workshop):
    """Seen in llama-swap #946: the unload and the request waited for each other."""
    registry = make(workshop, "a", ttl=60.0)
    await use(registry, "a")
    asked: list[asyncio.Task[str]] = []
    loop = asyncio.get_running_loop()
    for early in (1e-3, 0.0, -1e-3):
        loop.call_later(60.0 - early, lambda: asked.append(asyncio.create_task(use(registry, "a"))))
    await passes(61.0)
    assert [await task for task in asked] == ["a", "a", "a"]
    assert registry.model("a").leases == 0


async def test_readers_of_state_neither_wake_nor_keep_a_model(workshop):
    """Seen in llama.cpp #19346, #20227 and #23096: a scrape of the metrics kept models awake, or loaded them."""
    registry = make(workshop, "a", "b", ttl=60.0)
    await use(registry, "a")
    for _ in range(6):
        await passes(10.0)
        registry.models(), registry.waiting(), registry.engines(), registry.last_decisions(10)
    assert states(registry) == {"a": "unloaded", "b": "unloaded"}


async def test_closing_does_not_wait_for_a_load_that_never_ends(workshop):
    """Seen in llama-swap #38: the shutdown waited for a health check."""
    workshop.hold_loads = True
    registry = make(workshop, "a", policy=Policy(unload_timeout=30.0))
    waiting = asyncio.create_task(use(registry, "a"))
    await settled()
    stuck = workshop.last("a")
    stuck.cancel_load, stuck.closes_in_time = lambda: None, False
    before = now()
    assert not await registry.close(5.0)
    assert now() - before == 30.0
    with pytest.raises(Exception, match="shutting down"):
        await waiting


async def test_a_request_that_was_cancelled_in_the_queue_leaves_nothing_behind(workshop):
    """Seen in ollama PR #17044: each one left a goroutine, and its place in the queue."""
    registry = make(workshop, "a", "b", size=80, policy=Policy(queue_size=1))
    done = asyncio.Event()
    busy = asyncio.create_task(hold(registry, "a", done))
    await settled()
    for _ in range(3):
        queued = asyncio.create_task(use(registry, "b"))
        await settled()
        assert len(registry.waiting()) == 1
        queued.cancel()
        await settled()
    assert registry.waiting() == ()
    done.set()
    await busy
    assert await use(registry, "b") == "b"


async def test_a_request_that_may_not_wait_is_told_at_once(workshop):
    """Seen in oMLX #785: there was no way not to wait in a queue that nobody could see."""
    registry = make(workshop, "a", "b", size=80)
    done = asyncio.Event()
    busy = asyncio.create_task(hold(registry, "a", done))
    await settled()
    before = now()
    with pytest.raises(ModelWaitTimeout):
        await use(registry, "b", max_wait=0.0)
    assert now() == before
    done.set()
    await busy


async def test_a_failed_load_is_told_to_all_and_tried_again_later(workshop):
    """Seen in oMLX (probe): one transient error refused the model until the folders were read again."""
    workshop.failures["a"] = LoadError(LoadFailure.BAD_FILES, "truncated")
    registry = make(workshop, "a", policy=Policy(retry_backoff=5.0))
    tasks = [asyncio.create_task(use(registry, "a")) for _ in range(3)]
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results] == [ModelLoadFailed] * 3
    workshop.failures.clear()
    await passes(5.0)
    assert await use(registry, "a") == "a"
