"""A silent worker is noticed in time, and no worker is blamed for a daemon that stood still."""

from __future__ import annotations

import pytest
from virtual_time import VirtualLoop, _loop, now, passes

from mlxd.engines.worker.vigil import LOOK, START, Vigil

pytestmark = pytest.mark.virtual_time


class Watched:
    """A worker that is looked after."""

    def __init__(self, patience: float | None = 5.0) -> None:
        self.patience = patience
        self.silent: list[float] = []
        self.vigil = Vigil(lambda: self.patience, self.silent.append)
        self.vigil.start()


def stand_still(seconds: float) -> None:
    """This process is stopped for so long, and goes on."""
    loop: VirtualLoop = _loop()
    loop._now += seconds


async def test_a_worker_that_says_nothing_is_noticed_within_its_bound_and_once():
    it = Watched()
    it.vigil.heard()
    await passes(5 - LOOK)
    assert it.silent == []
    await passes(2 * LOOK + 0.1)
    assert len(it.silent) == 1
    await passes(100)
    assert len(it.silent) == 1


async def test_one_that_speaks_now_and_then_is_left_alone():
    it = Watched()
    for _ in range(20):
        it.vigil.heard()
        await passes(4.5)
    assert it.silent == []


async def test_a_start_takes_its_time():
    it = Watched()
    await passes(START - LOOK)
    assert it.silent == []
    await passes(2 * LOOK + 0.1)
    assert len(it.silent) == 1


@pytest.mark.parametrize("patience", [1.0, 5.0])
async def test_a_daemon_that_was_stopped_blames_no_worker(patience):
    it = Watched(patience)
    it.vigil.heard()
    await passes(0.5)
    began = now()
    stand_still(1000)
    await passes(0.0)
    it.vigil.heard()  # what it said meanwhile is read now
    assert it.silent == []
    while not it.silent:
        await passes(LOOK)
    assert patience <= now() - began - 1000 <= patience + 2 * LOOK


async def test_how_long_it_may_be_silent_can_change():
    it = Watched(None)
    it.vigil.heard()
    await passes(10_000)
    assert it.silent == []
    it.patience = 5.0
    await passes(2 * LOOK)
    assert len(it.silent) == 1


async def test_one_that_is_gone_is_not_listened_for():
    it = Watched()
    it.vigil.stop()
    await passes(100)
    assert it.silent == []
