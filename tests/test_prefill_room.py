"""Whether a prompt may start: what is tried, in which order, and how a wait for memory ends."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import mlx.core as mx
import pytest
from fake_runner import FakePrefixes, FakeRunner
from mlx_lm.models.cache import KVCache

from mlxd.engines.errors import MemoryWaitTimeout, PrefillMemoryExceeded
from mlxd.engines.memory_share import OFF, Brake, MemoryShare
from mlxd.engines.pacer import FIRST_CHUNK
from mlxd.engines.prefix_cache import PrefixCache
from mlxd.engines.prompt_price import RowNeed
from mlxd.engines.scheduler import Scheduler
from mlxd.engines.step_result import StepResult
from mlxd.engines.types import EngineConfig, PrefillEvictionRequest, Request, RequestOutput, SamplingParams

PROMPT = 10
CHUNK = 512
USUAL = 128
HOLD = 30.0


def request(name: str, tokens: int = 3, prompt: int = PROMPT) -> Request:
    return Request(name, tuple(range(prompt)), SamplingParams(max_tokens=tokens))


class Engine:
    """A scheduler on a clock that a test moves. Ten bytes a token of a prompt, and one for each token of a chunk.

    `calls` has what was tried, in order: the chunks that it was measured with, and what came between. `frees` is what
    MLX's free buffers have.
    """

    def __init__(self, room: int, *, prefixes: int = 0, **limits) -> None:
        self.room = room
        self.now = 0.0
        self.calls: list[str | int] = []
        self.frees = 0
        self.woken = 0
        self.at_reclaim = lambda: None
        self.runner = RecordedRunner(self.calls, prefixes)
        self.share = MemoryShare(lambda: self.room, limit=lambda: "memory.ceiling")
        self.other = self.share.stake("other")
        fields = {"max_running": 4, "prefill_chunk": CHUNK, "hold_timeout": HOLD, **limits}
        self.scheduler = Scheduler(
            self.runner,
            EngineConfig("m", Path("m"), 1000, **fields),
            memory=self.share.stake("m"),
            reclaim=self.reclaim,
            on_memory=self._wake,
            clock=lambda: self.now,
        )

    def _wake(self) -> None:
        self.woken += 1
        self.scheduler.memory_changed()

    def reclaim(self) -> None:
        self.calls.append("reclaim")
        self.room += self.frees
        self.at_reclaim()

    def step(self) -> StepResult:
        """One step; `calls` has what was tried in it."""
        self.calls.clear()
        return self.scheduler.step()

    def ask(self) -> PrefillEvictionRequest:
        """A step that must end with a question."""
        eviction = self.step().eviction
        assert eviction is not None
        return eviction

    def answered(self, name: str) -> StepResult:
        """The question was answered, and the next step is taken."""
        self.scheduler.room_made(name)
        return self.step()

    def status(self, name: str) -> str | None:
        return next(one.waiting_for for one in self.scheduler.statuses() if one.id == name)

    def chunk(self) -> int:
        """The chunk that the last row was bound to."""
        return self.runner.inserted[-1].chunk


class RecordedPrefixes(FakePrefixes):
    """Kept prefixes that note when they are trimmed."""

    def __init__(self, calls: list[str | int], nbytes: int) -> None:
        super().__init__(nbytes=nbytes)
        self.calls = calls

    def trim(self, max_bytes: int, sparing: Sequence[int] = ()) -> int:
        self.calls.append("trim")
        return super().trim(max_bytes, sparing)


class RecordedRunner(FakeRunner):
    """Notes the chunk of each prompt that is measured, once in a row."""

    def __init__(self, calls: list[str | int], prefix_bytes: int) -> None:
        super().__init__(chunk_bytes=1, prefixes=RecordedPrefixes(calls, prefix_bytes))
        self.calls = calls

    def demand(self, more: RowNeed | None, chunk: int) -> int:
        if more is not None and self.calls[-1:] != [chunk]:
            self.calls.append(chunk)
        return super().demand(more, chunk)


def beside_another(room: int, **options) -> Engine:
    """An engine beside one that runs a sequence."""
    engine = Engine(room, **options)
    engine.other.set(0, 1)
    return engine


def held(room: int = 0, **options) -> Engine:
    """An engine whose first prompt, "a", has asked and is held beside another engine."""
    engine = beside_another(room, **options)
    engine.scheduler.add(request("a"), 0.0)
    engine.ask()
    engine.answered("a")
    assert engine.status("a") == "memory"
    return engine


# -- the order --------------------------------------------------------------------------------------------------


def test_with_room_for_it_a_prompt_takes_the_largest_chunks_and_nothing_else_is_tried():
    engine = Engine(10 * PROMPT + CHUNK, prefixes=100)
    engine.scheduler.add(request("a"), 0.0)
    engine.step()
    assert engine.chunk() == CHUNK
    assert engine.calls == [CHUNK]


def test_with_less_room_a_prompt_takes_chunks_like_those_before():
    engine = Engine(10 * PROMPT + CHUNK - 1, prefixes=100)
    engine.scheduler.add(request("a"), 0.0)
    engine.step()
    assert engine.chunk() == USUAL == 2 * engine.runner.short_prompt
    assert engine.calls == [CHUNK, USUAL]


def test_everything_is_tried_in_order_before_a_refusal():
    engine = Engine(10 * PROMPT + FIRST_CHUNK - 1, prefixes=USUAL - FIRST_CHUNK + 1)
    engine.scheduler.add(request("a"), 0.0)
    eviction = engine.ask()
    assert engine.calls == [CHUNK, USUAL, "trim", USUAL]
    assert (eviction.needed_bytes, eviction.headroom_bytes) == (10 * PROMPT + USUAL, 10 * PROMPT + FIRST_CHUNK - 1)
    again = engine.answered("a").eviction
    assert again.needed_bytes == 10 * PROMPT + FIRST_CHUNK
    assert engine.calls == [CHUNK, USUAL, "reclaim", USUAL, FIRST_CHUNK]
    [(_, error)] = engine.answered("a").deliveries
    assert isinstance(error, PrefillMemoryExceeded)
    assert (error.estimated_bytes, error.limit_bytes) == (10 * PROMPT + FIRST_CHUNK, 10 * PROMPT + FIRST_CHUNK - 1)
    assert "memory.ceiling" in str(error)
    assert engine.calls == [CHUNK, USUAL, "reclaim", USUAL, FIRST_CHUNK]


def test_the_smallest_chunks_are_taken_only_after_everything_else():
    engine = Engine(10 * PROMPT + FIRST_CHUNK)
    engine.scheduler.add(request("a"), 0.0)
    engine.ask()
    engine.answered("a")
    assert engine.scheduler.running == 1
    assert engine.chunk() == FIRST_CHUNK
    assert "reclaim" in engine.calls


def test_who_could_not_be_given_room_for_the_usual_chunks_asks_for_less():
    """Nobody leaves for a prompt that would not fit even then, but in smaller chunks it may."""
    engine = Engine(0)
    engine.scheduler.add(request("a"), 0.0)
    assert engine.ask().needed_bytes == 10 * PROMPT + USUAL
    assert engine.answered("a").eviction.needed_bytes == 10 * PROMPT + FIRST_CHUNK
    engine.room = 10 * PROMPT + FIRST_CHUNK
    engine.answered("a")
    assert engine.chunk() == FIRST_CHUNK


def test_free_buffers_that_are_given_back_may_be_enough_for_the_usual_chunk():
    engine = Engine(0)
    engine.scheduler.add(request("a"), 0.0)
    engine.ask()
    engine.frees = 10 * PROMPT + USUAL
    engine.answered("a")
    assert engine.chunk() == USUAL
    assert engine.calls == [CHUNK, USUAL, "reclaim", USUAL]


def test_others_that_end_during_a_look_are_not_missed():
    engine = Engine(0)
    engine.other.set(0, 1)
    engine.at_reclaim = lambda: engine.other.set(0, 0)
    engine.scheduler.add(request("a"), 0.0)
    engine.ask()
    engine.answered("a")
    assert engine.woken == 1


def test_what_the_prompt_itself_begins_with_is_spared():
    engine = Engine(10 * PROMPT + USUAL - 40, prefixes=100)
    engine.scheduler.add(request("a"), 0.0)
    engine.step()
    assert [list(prompt) for prompt in engine.runner.prefixes.spared] == [list(range(PROMPT))]


def test_no_more_is_trimmed_than_is_short():
    engine = Engine(10 * PROMPT + USUAL - 40, prefixes=100)
    engine.scheduler.add(request("a"), 0.0)
    engine.step()
    assert engine.runner.prefixes.nbytes == 60


def entry(cache: PrefixCache, start: int) -> tuple[int, ...]:
    """Keep a processed prompt of 32 tokens."""
    tokens = tuple(range(start, start + 32))
    layer = KVCache()
    layer.update_and_fetch(mx.ones((1, 1, 32, 8)), mx.ones((1, 1, 32, 8)))
    assert cache.put(tokens, layer.nbytes, lambda: [layer])
    return tokens


def test_a_trim_takes_the_oldest_prefixes_but_not_the_one_that_is_spared():
    cache = PrefixCache(10**6)
    kept = [entry(cache, start) for start in (0, 1000, 2000)]
    size = cache.nbytes // 3
    assert cache.trim(2 * size, sparing=(*kept[0], 5)) == size
    assert [cache.match_length((*tokens, 5)) for tokens in kept] == [32, 0, 32]


def test_a_trim_to_nothing_leaves_only_what_is_spared():
    cache = PrefixCache(10**6)
    kept = [entry(cache, start) for start in (0, 1000)]
    size = cache.nbytes // 2
    assert cache.trim(0, sparing=(*kept[1], 5)) == size
    assert cache.nbytes == size
    assert cache.trim(0, sparing=(7, 8, 9)) == size
    assert cache.nbytes == 0


def test_what_is_cached_of_a_prompt_need_not_be_processed():
    engine = Engine(10**6)
    prompt = request("a")
    engine.runner.prefixes.cached[prompt.prompt] = 6
    engine.scheduler.add(prompt, 0.0)
    engine.step()
    [(need, _)] = [one for one in engine.runner.demanded if one[0] is not None]
    assert (need.prompt, need.done, need.slots) == (PROMPT, 6, 6)


# -- a wait -----------------------------------------------------------------------------------------------------


def test_a_prompt_is_held_while_another_engine_runs_and_is_no_work_until_memory_changes():
    engine = held()
    assert not engine.scheduler.has_work
    engine.room = 10**6
    assert not engine.scheduler.has_work
    engine.other.set(0, 0)
    assert engine.woken == 1
    assert engine.scheduler.has_work
    engine.step()
    assert engine.scheduler.running == 1


def test_each_look_at_a_held_prompt_is_told_of_the_next_change():
    engine = held()
    for times in range(1, 4):
        engine.share.changed()
        assert engine.woken == times
        engine.step()
        assert not engine.scheduler.has_work


def test_a_held_prompt_asks_again_after_a_second():
    engine = held()
    engine.now = 0.9
    engine.share.changed()
    assert engine.step().eviction is None
    engine.now = 1.0
    engine.share.changed()
    assert engine.ask().request_id == "a"


def test_an_answer_that_takes_longer_than_that_is_no_reason_to_ask_again():
    """Else one whose answers are slow would do nothing but ask, and its wait would have no bound."""
    engine = held()
    engine.now = 1.0
    engine.share.changed()
    engine.ask()
    engine.now = 9.0
    assert engine.answered("a").eviction is None
    assert engine.status("a") == "memory"
    engine.now = HOLD - 0.1
    engine.share.changed()
    engine.ask()
    engine.now = HOLD + 5
    [(_, error)] = engine.answered("a").deliveries
    assert isinstance(error, MemoryWaitTimeout)


def test_nobody_is_asked_for_one_whose_wait_is_over():
    engine = held()
    engine.now = HOLD
    engine.share.changed()
    result = engine.step()
    assert result.eviction is None
    assert isinstance(result.deliveries[0][1], MemoryWaitTimeout)


def test_once_nobody_runs_any_more_a_held_prompt_asks_once_more_and_is_then_refused():
    engine = held(room=50)
    engine.other.set(0, 0)
    assert engine.ask().needed_bytes == 10 * PROMPT + FIRST_CHUNK
    [(_, error)] = engine.answered("a").deliveries
    assert isinstance(error, PrefillMemoryExceeded)
    assert (error.estimated_bytes, error.limit_bytes) == (10 * PROMPT + FIRST_CHUNK, 50)


def test_a_prompt_that_takes_the_same_in_any_chunks_asks_once_with_nobody_about():
    engine = Engine(50)
    engine.runner.chunk_bytes = 0
    engine.scheduler.add(request("a"), 0.0)
    engine.ask()
    [(_, error)] = engine.answered("a").deliveries
    assert isinstance(error, PrefillMemoryExceeded)


def test_a_wait_for_memory_ends():
    engine = held(room=50)
    engine.now = HOLD - 0.1
    engine.share.changed()
    engine.ask()
    assert engine.answered("a").deliveries == []
    engine.now = HOLD
    engine.share.changed()
    [(_, error)] = engine.step().deliveries
    assert isinstance(error, MemoryWaitTimeout)
    assert (error.estimated_bytes, error.available_bytes, error.waited) == (10 * PROMPT + FIRST_CHUNK, 50, HOLD)


def test_endless_requests_elsewhere_do_not_keep_a_held_prompt_waiting_for_ever():
    engine = held()
    ended: list[RequestOutput | Exception] = []
    for second in range(1, int(HOLD) + 3):
        engine.now = float(second)
        engine.other.set(0, 2)
        engine.other.set(0, 1)
        while engine.scheduler.has_work:
            result = engine.step()
            ended += [item for _, item in result.deliveries]
            if result.eviction is not None:
                engine.scheduler.room_made(result.eviction.request_id)
    [error] = ended
    assert isinstance(error, MemoryWaitTimeout)
    assert error.waited <= HOLD + 1


def test_without_a_bound_a_held_prompt_goes_on_waiting():
    engine = held(hold_timeout=None)
    engine.now = 10**6
    engine.share.changed()
    engine.ask()
    assert engine.answered("a").deliveries == []


@pytest.mark.parametrize("how", ["abort", "cancel", "abort_all"])
def test_a_held_request_can_leave(how):
    engine = held()
    engine.scheduler.add(request("b", prompt=1), 1.0)
    engine.room = 10 + CHUNK
    if how == "abort":
        assert engine.scheduler.abort("a")
    elif how == "cancel":
        assert engine.scheduler.cancel("a").deliveries[0][1].cancelled
    else:
        error = PrefillMemoryExceeded("x", 1, 1)
        assert [item for _, item in engine.scheduler.abort_all(error).deliveries] == [error, error]
        assert not engine.scheduler.has_work
        return
    assert engine.scheduler.has_work
    engine.step()
    assert [one.id for one in engine.scheduler.statuses()] == ["b"]
    assert engine.scheduler.running == 1


def test_nobody_passes_a_prompt_that_is_held():
    engine = held()
    engine.room = 10 + USUAL
    engine.scheduler.add(request("small", prompt=1), 1.0)
    assert not engine.scheduler.has_work
    engine.share.changed()
    engine.step()
    assert engine.scheduler.running == 0
    engine.room = 10**6
    engine.share.changed()
    engine.step()
    assert [row.request.id for row in engine.runner.inserted] == ["a", "small"]


def test_beside_sequences_of_its_own_engine_a_held_prompt_starts_when_one_has_left():
    engine = Engine(10**6)
    engine.scheduler.add(request("a", tokens=5), 0.0)
    engine.step()
    engine.room = 0
    engine.scheduler.add(request("b"), 1.0)
    engine.ask()
    engine.answered("b")
    assert engine.status("b") == "memory"
    engine.room = 10**6
    while engine.scheduler.waiting:
        assert engine.scheduler.has_work
        engine.step()
    assert [row.request.id for row in engine.runner.inserted] == ["a", "b"]


def test_a_prompt_whose_row_cannot_be_made_leaves_no_promise():
    def refuse(_: Request) -> None:
        raise ValueError("no such sampler")

    engine = Engine(10**6)
    engine.scheduler.add(request("first"), 0.0)
    while engine.scheduler.has_work:
        engine.step()
    engine.runner.fail_insert = refuse
    engine.scheduler.add(request("a"), 0.0)
    engine.step()
    assert engine.share.spare() == engine.room
    assert not engine.other.others_run()


# -- the brakes -------------------------------------------------------------------------------------------------


def test_the_brake_holds_prompts_beside_others_although_they_would_fit():
    engine = beside_another(10**6)
    engine.share.brake_to(Brake(hold=True))
    engine.scheduler.add(request("a"), 0.0)
    assert engine.step().eviction is None
    assert engine.status("a") == "memory"
    assert not engine.scheduler.has_work
    engine.share.brake_to(OFF)
    engine.step()
    assert engine.scheduler.running == 1


def test_the_brake_holds_beside_sequences_of_the_same_engine_too():
    engine = Engine(10**6)
    engine.scheduler.add(request("a", tokens=3), 0.0)
    engine.step()
    engine.share.brake_to(Brake(hold=True))
    engine.scheduler.add(request("b"), 0.0)
    engine.step()
    assert engine.status("b") == "memory"
    while engine.scheduler.has_work:
        engine.step()
    assert [row.request.id for row in engine.runner.inserted] == ["a", "b"]


def test_with_nobody_else_about_the_brake_holds_nobody():
    engine = Engine(10**6)
    engine.share.brake_to(Brake(hold=True))
    engine.scheduler.add(request("a"), 0.0)
    engine.step()
    assert engine.scheduler.running == 1


def test_a_prompt_that_the_brake_holds_is_not_held_for_ever():
    engine = beside_another(10**6)
    engine.share.brake_to(Brake(hold=True))
    engine.scheduler.add(request("a"), 0.0)
    engine.step()
    engine.now = HOLD
    engine.share.changed()
    [(_, error)] = engine.step().deliveries
    assert isinstance(error, MemoryWaitTimeout)


def test_the_slow_brake_makes_all_chunks_small_until_it_is_off():
    engine = Engine(10**6)
    engine.scheduler.add(request("a", tokens=5), 0.0)
    engine.step()
    engine.share.brake_to(Brake(slow=True))
    engine.step()
    engine.share.brake_to(OFF)
    engine.step()
    assert engine.runner.slowed == [None, FIRST_CHUNK, None]
