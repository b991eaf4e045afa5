"""A worker's share of the memory: what the daemon has in its books is what the worker means, whatever happens."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mlxd.engines.memory_share import Brake, MemoryShare
from mlxd.engines.worker.memory_clerk import MemoryClerk
from mlxd.engines.worker.to_daemon import MemorySet, WakeMe
from mlxd.engines.worker.to_worker import BrakeTo, MemoryAnswer, MemoryMayBeFree
from mlxd.engines.worker.worker_stake import SLACK, WorkerStake

ROOM = 100 * SLACK
PROMISES = st.sampled_from([0, 1, SLACK // 2, SLACK, 2 * SLACK, 50 * SLACK, ROOM, 2 * ROOM])
STEPS = st.lists(
    st.tuples(st.just("claim"), PROMISES, st.just(0)) | st.tuples(st.just("set"), PROMISES, st.integers(0, 2)),
    max_size=12,
)


class Wire:
    """Both ends of a worker's share without the socket between them: whoever sends is answered before it goes on."""

    def __init__(self, share: MemoryShare) -> None:
        self.share = share
        self.sent: list[Any] = []
        self.got: list[Any] = []
        self.books = share.stake("worker")
        self.clerk = MemoryClerk(self.books, self._answer)
        self.stake = WorkerStake(self)  # type: ignore[arg-type] - it only sends

    def send(self, message: Any) -> None:
        self.sent.append(message)
        self.clerk.take(message)

    def _answer(self, message: Any) -> None:
        self.got.append(message)
        match message:
            case MemoryAnswer():
                self.stake.answered(message)
            case MemoryMayBeFree():
                self.stake.woken()
            case BrakeTo(hold, slow):
                self.stake.brake = Brake(hold, slow)


async def test_the_books_say_what_they_would_say_of_an_engine_of_this_process():
    @given(STEPS)
    def agree(steps):
        here = MemoryShare(lambda: ROOM)
        there = MemoryShare(lambda: ROOM)
        mine, wire = here.stake("engine"), Wire(there)
        others = here.stake("other"), there.stake("other")
        for method, promised, running in steps:
            if method == "claim":
                wanted, got = mine.claim(promised), wire.stake.claim(promised)
                assert (wanted is None) == (got is None)
            else:
                mine.set(promised, running)
                wire.stake.set(promised, running)
            left = [share.spare() for share in (here, there)]
            assert left[0] is not None
            assert left[1] is not None
            assert abs(left[0] - left[1]) < SLACK
            assert (left[0] == ROOM) == (left[1] == ROOM)
            assert others[0].others_run() == others[1].others_run()

    agree()


async def test_a_promise_for_what_never_ran_is_taken_back():
    wire = Wire(MemoryShare(lambda: ROOM))
    assert wire.stake.claim(ROOM // 2) is None
    wire.stake.set(0, 0)
    assert wire.share.spare() == ROOM


async def test_a_promise_that_shrinks_by_a_token_is_not_told_each_time():
    wire = Wire(MemoryShare(lambda: ROOM))
    for promised in range(10 * SLACK, 9 * SLACK, -1000):
        wire.stake.set(promised, 1)
    assert len([message for message in wire.sent if isinstance(message, MemorySet)]) <= 2


async def test_one_that_looks_again_and_again_is_woken_once():
    wire = Wire(MemoryShare(lambda: ROOM))
    woken: list[int] = []
    for _ in range(3):
        wire.stake.wake(lambda: woken.append(1))
    assert len([message for message in wire.sent if isinstance(message, WakeMe)]) == 1
    wire.share.changed()
    await asyncio.sleep(0)
    assert woken == [1]


async def test_a_worker_that_dies_gives_all_back_and_wakes_the_others():
    wire = Wire(MemoryShare(lambda: ROOM))
    wire.clerk.open()
    woken = threading.Event()
    wire.stake.wake(lambda: None)
    wire.stake.claim(ROOM)
    wire.share.stake("other").wake(woken.set)
    wire.clerk.close()
    assert woken.is_set()
    assert wire.share.spare() == ROOM
    wire.got.clear()
    wire.share.brake_to(Brake(hold=True))
    await asyncio.sleep(0)
    assert wire.got == []


async def test_without_a_measurement_there_is_nothing_to_give_and_nothing_is_promised():
    def unread() -> int:
        raise OSError("no such file")

    wire = Wire(MemoryShare(unread))
    assert wire.stake.claim(1) == 0
    assert wire.stake.room() == 0
    assert not wire.share.stake("other").others_run()


async def test_an_answer_that_comes_twice_or_for_nobody_changes_nothing():
    wire = Wire(MemoryShare(lambda: ROOM, limit=lambda: "memory.soft"))
    assert wire.stake.room() == ROOM
    for number in (1, 99):
        wire.stake.answered(MemoryAnswer(number, 5))
    assert wire.stake.room() == ROOM
    assert wire.stake.limit == "memory.soft"
