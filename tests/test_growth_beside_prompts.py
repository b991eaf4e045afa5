"""Rows that grow and prompts that wait, in one engine and beside another: neither keeps the other waiting for ever."""

from __future__ import annotations

from pathlib import Path

from fake_runner import FakeRunner

from mlxd.engines.memory_share import MemoryShare
from mlxd.engines.scheduler import Scheduler
from mlxd.engines.types import EngineConfig, Request, SamplingParams


def request(name: str, tokens: int) -> Request:
    return Request(name, (1, 2, 3, 4), SamplingParams(max_tokens=tokens))


class Tight:
    """A scheduler on a clock of its own; `headroom` is for prompts and `growth` for rows, in bytes."""

    def __init__(self) -> None:
        self.headroom = self.growth = 1000
        self.now = 0.0
        self.runner = FakeRunner()
        self.share = MemoryShare(lambda: self.headroom, lambda: self.growth)
        config = EngineConfig("m", Path("m"), context_length=1000, max_running=4)
        self.scheduler = Scheduler(self.runner, config, memory=self.share.stake("m"), clock=lambda: self.now)

    def answer(self) -> list[str]:
        """Take a step, and tell whoever asked for room in it that there is an answer; who that was."""
        eviction = self.scheduler.step().eviction
        if eviction is None:
            return []
        self.scheduler.room_made(eviction.request_id)
        return [eviction.request_id]


def test_a_row_that_must_grow_and_a_prompt_that_needs_room_are_both_answered():
    tight = Tight()
    tight.scheduler.add(request("old", tokens=30), 0.0)
    assert tight.answer() == []
    tight.headroom = tight.growth = 0
    tight.runner.is_full, tight.runner.growth = True, 500
    tight.scheduler.add(request("new", tokens=3), 1.0)
    asked = tight.answer() + tight.answer()
    assert sorted(asked) == ["new", "old"]
    tight.headroom = tight.growth = 1000
    tight.runner.is_full = False
    for _ in range(50):
        if tight.scheduler.has_work:
            tight.scheduler.step()
    assert (tight.scheduler.running, tight.scheduler.waiting) == (0, 0)


def test_a_row_that_must_grow_comes_before_a_prompt_that_would_take_its_room():
    tight = Tight()
    tight.scheduler.add(request("old", tokens=30), 0.0)
    tight.answer()
    tight.growth = 0
    tight.runner.is_full, tight.runner.growth = True, 500
    tight.scheduler.add(request("new", tokens=3), 1.0)
    assert tight.scheduler.step().eviction.request_id == "old"
    assert (tight.scheduler.running, tight.scheduler.waiting) == (1, 1)


def test_an_engine_whose_last_row_has_ended_is_not_waited_for():
    tight = Tight()
    tight.scheduler.add(request("only", tokens=3), 0.0)
    while tight.scheduler.has_work:
        tight.scheduler.step()
    assert not tight.share.stake("another").others_run()
    tight.scheduler.add(request("cancelled", tokens=30), 0.0)
    tight.scheduler.step()
    assert tight.share.stake("another").others_run()
    tight.scheduler.cancel("cancelled")
    assert not tight.share.stake("another").others_run()
