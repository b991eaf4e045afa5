"""Running rows that must grow and have no memory for it: others are asked, then the last that came gives way."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_runner import FakePrefixes, FakeRunner

from mlxd.engines.errors import FootprintExceeded, MemoryWaitTimeout
from mlxd.engines.memory_share import MemoryShare
from mlxd.engines.scheduler import Scheduler
from mlxd.engines.step_result import StepResult
from mlxd.engines.types import EngineConfig, PrefillEvictionRequest, Request, RequestState, SamplingParams

GROWTH = 100
HOLD = 30.0


def request(name: str, tokens: int = 20, prompt: int = 4) -> Request:
    return Request(name, tuple(range(prompt)), SamplingParams(max_tokens=tokens))


class Engine:
    """A scheduler on a clock that a test moves, whose buffers are always full; there is memory for `fitting` rows."""

    def __init__(self, prefixes: int = 0) -> None:
        self.fitting: int | None = None
        self.headroom = 10**6
        self.now = 0.0
        self.reclaims = 0
        self.runner = FakeRunner(is_full=True, growth=GROWTH, prefixes=FakePrefixes(nbytes=prefixes))
        self.share = MemoryShare(lambda: self.headroom, self._growth_room)
        self.scheduler = Scheduler(
            self.runner,
            EngineConfig("m", Path("m"), 1000, max_running=4, hold_timeout=HOLD),
            memory=self.share.stake("m"),
            reclaim=self._reclaim,
            on_memory=self._look_again,
            clock=lambda: self.now,
        )

    def _growth_room(self) -> int | None:
        if self.fitting is None:
            return None
        short = 0 if len(self.runner.rows) <= self.fitting else 40
        return GROWTH - short - self.runner.prefixes.nbytes

    def _look_again(self) -> None:
        self.scheduler.memory_changed()

    def _reclaim(self) -> None:
        self.reclaims += 1

    def run_all(self, *names: str, tokens: int = 20) -> None:
        """Have these run, with memory for all of them."""
        self.fitting = None
        for number, name in enumerate(names):
            self.scheduler.add(request(name, tokens), float(number))
        self.step()
        assert self.running() == list(names)

    def step(self) -> StepResult:
        return self.scheduler.step()

    def ask(self) -> PrefillEvictionRequest:
        """A step that must end with a question."""
        eviction = self.step().eviction
        assert eviction is not None
        return eviction

    def answered(self) -> StepResult:
        """The question is answered and the next step taken."""
        self.scheduler.room_made("a")
        return self.step()

    def running(self) -> list[str]:
        live = self.scheduler.statuses()
        return [one.id for one in live if one.state is not RequestState.WAITING]

    def waiting(self) -> list[str]:
        return [one.id for one in self.scheduler.statuses() if one.state is RequestState.WAITING]

    def finish(self) -> list[str]:
        """Go on to the end; the requests in the order in which they ended."""
        ended = []
        for _ in range(200):
            if not self.scheduler.has_work:
                break
            result = self.step()
            ended += [one.id for one, item in result.deliveries if getattr(item, "finish_reason", None)]
            if result.eviction is not None:
                self.scheduler.room_made(result.eviction.request_id)
        return ended


def tight(*names: str, fitting: int = 1, tokens: int = 20) -> Engine:
    """An engine whose rows have asked for room in the last step."""
    engine = Engine()
    engine.run_all(*names, tokens=tokens)
    engine.fitting = fitting
    engine.ask()
    return engine


def test_with_memory_for_it_rows_grow_and_nobody_is_asked():
    engine = Engine()
    engine.run_all("a", "b")
    engine.fitting = 2
    assert engine.step().eviction is None
    assert (engine.reclaims, engine.scheduler.preempted) == (0, 0)


def test_kept_prefixes_go_before_free_buffers_and_before_anybody_is_asked():
    engine = Engine(prefixes=60)
    engine.run_all("a", "b")
    engine.fitting = 2
    assert engine.step().eviction is None
    assert (engine.runner.prefixes.nbytes, engine.reclaims) == (0, 0)


def test_others_are_asked_in_the_name_of_the_first_that_came_and_the_step_waits():
    engine = Engine()
    engine.run_all("a", "b")
    tokens = engine.scheduler.completion_tokens
    engine.fitting = 1
    eviction = engine.ask()
    assert (eviction.request_id, eviction.reason) == ("a", "decode")
    assert (eviction.needed_bytes, eviction.headroom_bytes) == (GROWTH, GROWTH - 40)
    assert engine.reclaims == 1
    assert not engine.scheduler.has_work
    assert engine.scheduler.completion_tokens == tokens
    assert engine.running() == ["a", "b"]


def test_nothing_new_starts_while_an_answer_is_awaited():
    engine = tight("a", "b")
    engine.scheduler.add(request("c"), 9.0)
    assert not engine.scheduler.has_work
    assert engine.waiting() == ["c"]


def test_rows_go_on_when_the_answer_brought_room():
    engine = tight("a", "b")
    engine.fitting = 2
    tokens = engine.scheduler.completion_tokens
    engine.answered()
    assert engine.scheduler.completion_tokens == tokens + 2
    assert engine.scheduler.preempted == 0


def test_when_it_did_not_the_last_that_came_give_way_one_by_one_and_the_first_goes_on():
    engine = tight("a", "b", "c", fitting=2)
    engine.answered()
    assert (engine.running(), engine.waiting()) == (["a", "b"], ["c"])
    engine.fitting = 1
    engine.now = 0.5
    engine.step()
    assert (engine.running(), engine.waiting()) == (["a"], ["b", "c"])
    assert engine.scheduler.preempted == 2


def test_who_came_last_counts_and_not_who_started_last():
    engine = Engine()
    engine.scheduler.add(request("late"), 5.0)
    engine.scheduler.add(request("early"), 1.0)
    engine.step()
    engine.fitting = 1
    assert engine.ask().request_id == "early"
    engine.scheduler.room_made("early")
    engine.step()
    assert (engine.running(), engine.waiting()) == (["early"], ["late"])


def test_a_single_row_goes_on_although_there_is_no_memory():
    engine = tight("a", fitting=0)
    tokens = engine.scheduler.completion_tokens
    engine.answered()
    assert engine.running() == ["a"]
    assert engine.scheduler.completion_tokens == tokens + 1
    assert engine.scheduler.preempted == 0


def test_others_are_not_asked_again_within_a_second():
    engine = tight("a", fitting=0)
    engine.answered()
    engine.now = 0.9
    assert engine.step().eviction is None
    engine.now = 1.0
    assert engine.ask().request_id == "a"


def test_an_answer_that_takes_longer_than_that_is_an_answer_all_the_same():
    """Else rows whose answers are slow would never take a step again."""
    engine = tight("a", "b")
    engine.now = 5.0
    assert engine.answered().eviction is None
    assert engine.running() == ["a"]


def test_what_gave_way_starts_again_before_all_that_wait_and_only_when_somebody_has_left():
    engine = tight("a", "b", "c", tokens=6)
    engine.scheduler.add(request("d", tokens=6), 9.0)
    engine.answered()
    assert (engine.running(), engine.waiting()) == (["a"], ["b", "c", "d"])
    engine.fitting = None
    engine.step()
    assert engine.running() == ["a"]
    assert engine.finish() == ["a", "b", "c", "d"]
    assert [row.request.id for row in engine.runner.inserted] == ["a", "b", "c", "b", "c", "d"]


def test_what_gave_way_goes_on_from_what_it_had():
    engine = tight("a", "b", tokens=6)
    engine.answered()
    engine.fitting = None
    engine.finish()
    again = engine.runner.inserted[-1]
    assert (again.request.id, again.tokens, again.left, again.drawn) == ("b", (0, 1, 2, 3, 0), 5, 1)


def test_tokens_of_a_prompt_that_is_processed_twice_are_counted_once():
    engine = Engine()
    prompt = request("a").prompt
    engine.runner.prefixes.cached[prompt] = 3
    engine.run_all("a", "b", tokens=6)
    engine.fitting = 1
    engine.ask()
    counted = (engine.scheduler.prompt_tokens, engine.scheduler.cached_tokens)
    assert counted == (8, 6)
    engine.answered()
    engine.fitting = None
    engine.runner.prefixes.cached[(*prompt, 0)] = 4
    assert engine.finish() == ["a", "b"]
    assert (engine.scheduler.prompt_tokens, engine.scheduler.cached_tokens) == counted
    assert engine.scheduler.completion_tokens == 12


def test_one_after_the_other_all_are_served_where_only_one_fits():
    engine = tight("a", "b", "c", tokens=6)
    engine.scheduler.room_made("a")
    assert engine.finish() == ["a", "b", "c"]
    assert engine.runner.rows == {}


def test_everything_can_be_aborted_while_an_answer_is_awaited():
    engine = tight("a", "b")
    error = FootprintExceeded(2, 1, "memory.ceiling")
    assert [item for _, item in engine.scheduler.abort_all(error).deliveries] == [error, error]
    assert not engine.scheduler.has_work
    engine.fitting = None
    engine.scheduler.add(request("c", tokens=3), 9.0)
    assert engine.scheduler.has_work
    engine.scheduler.room_made("a")
    assert engine.finish() == ["c"]


@pytest.mark.parametrize("how", ["abort", "cancel"])
def test_a_row_that_leaves_ends_the_wait_for_an_answer_which_may_come_late(how):
    engine = tight("a", "b")
    if how == "abort":
        assert engine.scheduler.abort("a")
    else:
        assert engine.scheduler.cancel("a")
    assert engine.scheduler.has_work
    engine.scheduler.step()
    engine.scheduler.room_made("a")
    assert engine.finish() == ["b"]


def test_with_all_rows_gone_meanwhile_the_answer_lets_the_next_one_start():
    engine = tight("a", fitting=0)
    engine.scheduler.add(request("b", tokens=3), 9.0)
    engine.scheduler.abort("a")
    engine.scheduler.room_made("a")
    assert engine.finish() == ["b"]


@pytest.mark.parametrize("how", ["abort", "cancel"])
def test_what_gave_way_can_leave_while_it_waits(how):
    engine = tight("a", "b", tokens=6)
    engine.answered()
    if how == "abort":
        assert engine.scheduler.abort("b")
    else:
        [(_, last)] = engine.scheduler.cancel("b").deliveries
        assert (last.cancelled, last.usage.completion_tokens) == (True, 1)
    engine.fitting = None
    assert engine.finish() == ["a"]


def test_a_failed_step_ends_those_that_run_and_lets_what_gave_way_go_on():
    failures = []

    def fail() -> None:
        if failures:
            raise failures.pop()

    engine = Engine()
    engine.runner.fail = fail
    engine.run_all("a", "b", tokens=6)
    engine.fitting = 1
    engine.ask()
    engine.answered()
    assert engine.waiting() == ["b"]
    failures.append(RuntimeError("metal says no"))
    engine.step()
    assert engine.finish() == ["b"]


def test_what_gave_way_is_not_refused_beside_those_it_gave_way_to_but_has_a_bound_beside_others():
    engine = tight("a", "b", tokens=6)
    engine.answered()
    engine.share.stake("other").set(0, 1)
    engine.now = 10 * HOLD
    engine.share.changed()
    assert all(not isinstance(item, Exception) for _, item in engine.step().deliveries)
    assert engine.waiting() == ["b"]
    engine.headroom = 0
    errors = []
    for second in range(3 * int(HOLD)):
        engine.now = 10 * HOLD + second
        engine.share.changed()
        result = engine.step()
        errors += [(one.id, item) for one, item in result.deliveries if isinstance(item, Exception)]
        if result.eviction is not None:
            engine.scheduler.room_made(result.eviction.request_id)
    [(name, error)] = errors
    assert name == "b"
    assert isinstance(error, MemoryWaitTimeout)
