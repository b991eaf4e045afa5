"""What waits for a thread, a disk or a plan that may never come to an end: not for ever."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mlxd.engines import kept_prefixes, lanes
from mlxd.engines.cache_layers import CacheShape
from mlxd.engines.kept_prefixes import KeptPrefixes, PrefixLimits
from mlxd.engines.lanes import LanePool
from mlxd.registry import driver as driver_module
from mlxd.registry import events as ev
from mlxd.registry.driver import RETRY, Driver
from mlxd.registry.errors import ModelWaitTimeout
from mlxd.registry.residency import MemoryReading, Policy, Purpose, Residency, Resident, Waiter


class StuckBackend:
    """Its `reclaim` does not end before it is let go."""

    shares_processor = True

    def __init__(self) -> None:
        self.let_go = threading.Event()

    @contextmanager
    def lane_scope(self) -> Any:
        yield

    def reclaim(self) -> None:
        self.let_go.wait()


async def test_a_lane_that_does_not_come_back_is_never_lent_again(monkeypatch):
    monkeypatch.setattr(lanes, "RECLAIM_PATIENCE", 0.05)
    backend = StuckBackend()
    pool = LanePool(lambda: cast(Any, backend))
    await pool.warm_up()
    with pytest.raises(TimeoutError):
        await pool.reclaim()
    [stuck] = [thread for thread in threading.enumerate() if thread.name == "lane-1"]
    other = pool.acquire()
    assert other.name == "lane-2"
    pool.release(other)
    backend.let_go.set()
    stuck.join(10)
    assert not stuck.is_alive()
    assert await asyncio.to_thread(pool.close, 10)


def test_a_disk_that_does_not_answer_has_nothing(monkeypatch):
    monkeypatch.setattr(kept_prefixes, "READ_PATIENCE", 0.05)
    asked: list[Any] = []
    disk = SimpleNamespace(
        store=lambda _: None,
        find=lambda _: ("key", 10_000),
        nbytes=lambda _: 1,
        fetch=lambda _, done: asked.append(done),
    )
    kept = KeptPrefixes(PrefixLimits(10**6, 0), CacheShape(), cast(Any, disk))
    answers: list[Any] = []
    answered = threading.Event()

    def done(entry: Any) -> None:
        answers.append(entry)
        answered.set()

    assert kept.restore(range(20_000), done)
    assert answered.wait(10)
    asked[0](object())  # too late
    assert answers == [None]
    assert kept.restore(range(20_000), done)
    found = object()
    asked[1](found)
    assert answers == [None, found]


@pytest.mark.virtual_time
async def test_what_was_due_when_a_plan_failed_is_planned_again(monkeypatch):
    clock = asyncio.get_running_loop().time
    state = Residency(Policy(), MemoryReading(100, "memory.soft", 0, 0), {"m": Resident("m", 10)})
    answer: asyncio.Future[ev.Refuse] = asyncio.get_running_loop().create_future()

    def act(effect: ev.Effect) -> None:
        if isinstance(effect, ev.Refuse):
            answer.set_result(effect)

    driver = Driver(state, lambda *, fresh: state.memory, act, clock)
    driver.post(ev.Wanted(Waiter(1, "m", clock(), Purpose.LEASE, clock() + 30)))
    due = clock() + 30
    plan = driver_module.plan
    failures = iter([True])

    def failing(*arguments: Any) -> Any:
        if next(failures, False):
            raise RuntimeError("a bug")
        return plan(*arguments)

    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    monkeypatch.setattr(driver_module, "plan", failing)
    assert isinstance((await answer).error, ModelWaitTimeout)
    assert due + RETRY <= clock() <= due + RETRY + 0.1
    driver.stop()
