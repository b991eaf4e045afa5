"""The clock of tests: it jumps when nothing is left to do, to the exact moment, and never while anything works."""

import asyncio
import threading
import time

import pytest
from virtual_time import START, NothingHappensError, VirtualLoop, now, passes, settled

pytestmark = pytest.mark.virtual_time


async def test_a_timeout_of_a_day_ends_at_once_and_exactly():
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(86_400):
            await asyncio.Event().wait()
    assert now() == START + 86_400
    assert time.monotonic() - began < 10


async def test_timers_run_in_order_each_at_its_moment():
    loop, seen = asyncio.get_running_loop(), []
    for delay in (3, 0.1, 2, 0.3):
        loop.call_later(delay, lambda delay=delay: seen.append((delay, now())))
    await passes(3)
    assert seen == [(delay, START + delay) for delay in (0.1, 0.3, 2, 3)]
    assert now() == START + 3


async def test_settled_runs_chains_of_any_length_and_takes_no_time():
    steps = []

    async def chain(length: int) -> None:
        steps.append(length)
        if length:
            await asyncio.create_task(chain(length - 1))

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(chain(100))
        await settled()
        assert len(steps) == 101
    assert now() == START


async def test_settled_does_not_wait_for_timers_nor_for_who_waits_for_the_test():
    gate, reached = asyncio.Event(), []

    async def wait(name: str, coroutine) -> None:
        await coroutine
        reached.append(name)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(wait("gate", gate.wait()))
        tasks.create_task(wait("time", passes(5)))
        await settled()
        assert reached == []
        gate.set()
        await settled()
        assert (reached, now()) == (["gate"], START)
    assert (reached, now()) == (["gate", "time"], START + 5)


async def test_what_is_due_by_then_has_happened_when_time_has_passed():
    loop, seen = asyncio.get_running_loop(), []

    async def follow() -> None:
        seen.append(now())

    tasks = []
    loop.call_later(2, lambda: tasks.append(loop.create_task(follow())))
    await passes(2)
    assert seen == [START + 2]
    await asyncio.gather(*tasks)


async def test_the_clock_stands_still_while_a_thread_works():
    release, hurried = threading.Event(), []
    work = asyncio.create_task(asyncio.to_thread(release.wait, 20))
    asyncio.get_running_loop().call_later(1, hurried.append, "before the thread was done")
    threading.Timer(0.05, release.set).start()
    assert await work
    assert (hurried, now()) == ([], START)


def test_a_wait_that_nothing_can_end_is_an_error_and_no_hang():
    with asyncio.Runner(loop_factory=VirtualLoop) as runner, pytest.raises(NothingHappensError):
        runner.run(_wait_for_ever())


async def _wait_for_ever() -> None:
    await asyncio.Event().wait()
