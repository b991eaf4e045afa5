"""Snapshots for status calls: at once while they cost nothing, and a small part of the lane's time when they do."""

from contextlib import nullcontext
from pathlib import Path

import pytest

from mlxd.engines.crowd import Crowd
from mlxd.engines.image_threads import ImageThreads
from mlxd.engines.loop import NOTE_INTERVAL, NOTE_SHARE
from mlxd.engines.memory_share import MemoryShare
from mlxd.engines.messages import Inbox
from mlxd.engines.text_loop import TextLoop
from mlxd.engines.turns import Turns
from mlxd.engines.types import EngineConfig, EngineStats

STEP = 0.001


class Requests:
    """A scheduler with nothing but requests that wait; to tell of them takes `cost` seconds."""

    running = 0

    def __init__(self, cost):
        self.now, self.cost, self.taken, self.waiting = 100.0, cost, 0, 0

    def statuses(self):
        self.now += self.cost
        self.taken += 1
        return ()


class Notes(TextLoop):
    """A loop that only takes notes, on a clock of its own."""

    def __init__(self, cost):
        self.requests = requests = Requests(cost)
        super().__init__(
            EngineConfig("m", Path("m"), 100),
            Inbox(),
            lambda _: None,
            memory=MemoryShare().stake("m"),
            step_lock=nullcontext(),
            turns=Turns(),
            crowd=Crowd(),
            images=ImageThreads(),
            clock=lambda: requests.now,
        )

    def _figures(self, scheduler):
        return EngineStats(running=scheduler.running, waiting=scheduler.waiting)

    def steps(self, count, *, changes):
        """So many steps, with or without another set of live requests each."""
        for _ in range(count):
            self.requests.now += STEP
            self.requests.waiting += changes
            self._note(self.requests)


def test_a_cheap_snapshot_follows_every_change():
    notes = Notes(0.0)
    notes.steps(50, changes=True)
    assert notes.requests.taken == 50
    assert notes.stats.waiting == notes.requests.waiting


@pytest.mark.parametrize("cost", [0.001, 0.005])
def test_a_dear_one_takes_a_small_part_of_the_time(cost):
    notes = Notes(cost)
    notes.steps(2000, changes=True)
    spent = notes.requests.now - 100.0
    assert notes.requests.taken * cost <= 1.1 * NOTE_SHARE * spent
    assert notes.requests.taken > 10


def test_without_a_change_they_come_at_intervals_and_before_a_rest_there_is_always_one():
    notes = Notes(0.0)
    notes.steps(500, changes=False)
    assert notes.requests.taken == pytest.approx(500 * STEP / NOTE_INTERVAL, abs=1)
    dear = Notes(0.005)
    dear.steps(2, changes=True)
    dear._note(dear.requests, now=True)
    assert dear.stats.waiting == dear.requests.waiting == 2
