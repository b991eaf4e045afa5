"""Which inputs go together, how large steps are, what memory does to them, and whose fault is whose."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest

from mlxd.engines.embedding_pace import LEAST, EmbeddingPace
from mlxd.engines.embedding_queue import InputQueue, Work, padded
from mlxd.engines.embedding_scheduler import EmbeddingScheduler
from mlxd.engines.embedding_types import EmbeddingRequest, EncoderInput
from mlxd.engines.errors import FootprintExceeded, MemoryWaitTimeout, PrefillMemoryExceeded, StepFailed
from mlxd.engines.memory_share import Brake, MemoryShare
from mlxd.engines.transients import Transients
from mlxd.engines.types import EngineConfig, EngineLimits, ModelInfo


def wanted(request_id: str, *lengths: int) -> EmbeddingRequest:
    return EmbeddingRequest(request_id, tuple(EncoderInput(array("i", [1] * length)) for length in lengths))


class Price(Transients):
    """A hundred bytes for each token with its padding."""

    def estimate(self, rows: int, chunk: int, keys: int) -> int:
        return 100 * rows * chunk


@dataclass
class FakeEncoder:
    """Gives each input its length as its vector; `fail` is called before a step and may raise."""

    fail: Callable[[Sequence[EncoderInput]], None] = lambda _: None
    batches: list[list[int]] = field(default_factory=list)
    info: ModelInfo = field(default_factory=lambda: ModelInfo(10, 10))
    tokenizer: Any = None
    transients: Transients = field(default_factory=Price)
    not_finite: int = -1

    def run(self, inputs: Sequence[EncoderInput]) -> tuple[bytes | None, ...]:
        self.fail(inputs)
        self.batches.append([len(each) for each in inputs])
        return tuple(None if len(each) == self.not_finite else len(each).to_bytes(4) for each in inputs)

    def close(self) -> None:
        """Nothing to drop."""


class World:
    """A scheduler over a fake encoder, with memory and a clock that a test sets. `answers` are what readers got."""

    def __init__(self, room: int | None = None, **config: Any) -> None:
        self.room = room
        self.now = 0.0
        self.woken = 0
        self.at_reclaim: Callable[[], None] = lambda: None
        self.encoder = FakeEncoder()
        self.share = MemoryShare(lambda: self.room)
        self.answers: dict[str, Any] = {}
        self.asked: list[Any] = []
        self.dead: Any = None
        self.scheduler = EmbeddingScheduler(
            self.encoder,
            EngineConfig("m", "m", 512, **config),  # type: ignore[arg-type]
            memory=self.share.stake("m"),
            reclaim=self._reclaim,
            on_memory=self._wake,
            clock=lambda: self.now,
        )

    def _wake(self) -> None:
        self.woken += 1

    def _reclaim(self) -> None:
        self.at_reclaim()

    def add(self, *requests: EmbeddingRequest) -> None:
        for request in requests:
            self.scheduler.add(request, self.now)

    def step(self) -> None:
        self.take(self.scheduler.step())

    def take(self, result: Any) -> None:
        self.answers.update({request.id: item for request, item in result.deliveries})
        self.asked += [result.eviction] if result.eviction is not None else []
        self.dead = self.dead or result.dead

    def run(self, most: int = 100) -> None:
        for _ in range(most):
            if not self.scheduler.has_work:
                return
            self.step()
        pytest.fail(f"it still works after {most} steps")

    def vectors(self, request_id: str) -> list[int | None]:
        return [None if vector is None else int.from_bytes(vector) for vector in self.answers[request_id].vectors]


# -- which go together ---------------------------------------------------------------------------------


def test_inputs_of_one_width_go_together_whoever_asked():
    world = World()
    world.add(wanted("a", 9, 200, 10), wanted("b", 11), wanted("c", 12, 13))
    world.run()
    assert sorted(world.encoder.batches[0]) == [9, 10, 11, 12, 13]
    assert world.encoder.batches[1:] == [[200]]
    assert world.vectors("a") == [9, 200, 10]
    assert world.vectors("c") == [12, 13]


def test_padding_is_never_more_than_half():
    for length in range(9, 3000):
        assert length <= padded(length) <= 1.5 * length + 8
    widths = {padded(length) for length in range(1, 4097)}
    assert len(widths) < 30


def test_a_batch_keeps_to_its_tokens_but_has_one_input_at_least():
    queue = InputQueue()
    queue.add(Work.of(wanted("a", *[16] * 100, 5000), 0.0))
    assert [len(item.input) for item in queue.take(64)] == [16] * 4
    long = InputQueue()
    long.add(Work.of(wanted("a", 5000), 0.0))
    assert len(long.take(64)) == 1


def test_a_short_request_waits_for_at_most_one_step_of_a_long_one():
    world = World()
    world.add(wanted("long", *[250] * 500))
    world.step()
    world.add(wanted("short", 5))
    world.step()
    world.step()
    assert world.vectors("short") == [5]
    assert "long" not in world.answers


def test_a_single_input_gets_a_place_in_a_batch_that_others_could_fill():
    world = World()
    world.add(wanted("many", *[16] * 500), wanted("one", 16))
    world.step()
    assert world.vectors("one") == [16]
    assert world.scheduler.running == 1


def test_figures_count_requests_that_began_and_tokens_that_were_read():
    world = World()
    world.add(wanted("a", 16, 300), wanted("b", 400))
    assert (world.scheduler.running, world.scheduler.waiting) == (0, 2)
    world.step()
    assert (world.scheduler.running, world.scheduler.waiting, world.scheduler.prompt_tokens) == (1, 1, 16)
    began, waits = world.scheduler.statuses()
    assert (began.id, began.state, began.usage.prompt_tokens, began.waiting_for) == ("a", "prefilling", 316, None)
    assert (waits.id, waits.state, waits.waiting_for) == ("b", "waiting", "slot")
    world.run()
    assert world.scheduler.prompt_tokens == 716


# -- ends ----------------------------------------------------------------------------------------------


def test_a_cancelled_request_gets_what_was_made_of_it():
    world = World()
    world.add(wanted("a", 16, 300))
    world.step()
    world.take(world.scheduler.cancel("a"))
    assert world.vectors("a") == [16, None]
    assert (world.answers["a"].cancelled, world.answers["a"].prompt_tokens) == (True, 16)
    assert not world.scheduler.has_work
    assert not world.scheduler.cancel("a")


def test_an_aborted_request_takes_no_more_steps_and_disturbs_no_other():
    world = World()
    world.add(wanted("a", *[16] * 50, 300), wanted("b", 16, 300))
    world.step()
    assert world.scheduler.abort("a")
    assert not world.scheduler.abort("a")
    world.run()
    assert set(world.answers) == {"b"}


def test_abort_all_ends_everybody_with_the_error():
    world = World()
    world.add(wanted("a", 16, 300), wanted("b", 300))
    world.step()
    error = FootprintExceeded(2, 1, "limit")
    world.take(world.scheduler.abort_all(error))
    assert world.answers == {"a": error, "b": error}
    assert (world.scheduler.running, world.scheduler.waiting, world.scheduler.has_work) == (0, 0, False)


# -- faults --------------------------------------------------------------------------------------------


def breaks_on(length: int) -> Callable[[Sequence[EncoderInput]], None]:
    def fail(inputs: Sequence[EncoderInput]) -> None:
        if any(len(each) == length for each in inputs):
            raise RuntimeError("boom")

    return fail


def test_of_a_batch_that_raises_only_the_request_at_fault_fails():
    world = World()
    world.encoder.fail = breaks_on(13)
    world.add(wanted("a", 12, 11), wanted("bad", 13, 12), wanted("b", 12))
    world.run()
    assert world.vectors("a") == [12, 11]
    assert world.vectors("b") == [12]
    assert isinstance(world.answers["bad"], StepFailed)
    assert world.dead is None


def test_numbers_that_are_not_finite_are_one_requests_fault():
    world = World()
    world.encoder.not_finite = 13
    world.add(wanted("a", 12), wanted("bad", 13, 13, 12), wanted("b", 12))
    world.run()
    assert isinstance(world.answers["bad"], StepFailed)
    assert world.vectors("a") == world.vectors("b") == [12]


def test_steps_that_fail_one_after_the_other_end_the_engine():
    world = World(max_step_failures=3)
    world.encoder.fail = breaks_on(13)
    world.add(*(wanted(f"r{number}", 13) for number in range(5)))
    world.run()
    assert world.dead is not None
    assert len(world.answers) == 5
    assert list(world.answers.values()).count(world.dead) >= 3


# -- the size of a step --------------------------------------------------------------------------------


def limits(max_stall: float | None = 0.25, chunk: int = 2048) -> EngineLimits:
    return EngineLimits(32, 256, chunk, max_stall, 10.0)


def test_a_step_grows_at_most_twofold_until_it_takes_max_stall():
    pace = EmbeddingPace(limits(), rows=8)
    sizes = []
    for _ in range(12):
        sizes.append(pace.tokens(slow=False))
        pace.observe(sizes[-1], sizes[-1] / 10_000)  # ten thousand tokens a second
    assert sizes[0] == LEAST
    assert all(after <= 2 * before for before, after in pairwise(sizes))
    assert sizes[-1] == 2500


def test_a_step_is_never_larger_than_a_prefill_of_text_and_never_too_small():
    pace = EmbeddingPace(limits(max_stall=None), rows=8)
    for _ in range(20):
        pace.observe(pace.tokens(slow=False), 1e-9)
    assert pace.tokens(slow=False) == 8 * 2048
    assert pace.tokens(slow=True) == LEAST
    pace.retune(limits(chunk=100))
    assert pace.tokens(slow=False) == 800
    pace.observe(800, 60)
    assert pace.tokens(slow=False) == LEAST


def test_a_small_batch_does_not_shrink_the_steps_after_it_unless_it_took_too_long():
    pace = EmbeddingPace(limits(), rows=8)
    for _ in range(8):
        pace.observe(pace.tokens(slow=False), pace.tokens(slow=False) / 10_000)
    pace.observe(20, 0.1)
    assert pace.tokens(slow=False) == 2500
    pace.observe(1000, 0.5)  # but one that took too long does
    assert pace.tokens(slow=False) == LEAST


# -- memory --------------------------------------------------------------------------------------------


def test_a_batch_is_cut_to_the_memory_that_there_is():
    world = World(room=100 * 16 * 4)
    world.add(wanted("a", *[16] * 9))
    world.run()
    assert max(map(len, world.encoder.batches)) == 4
    assert world.vectors("a") == [16] * 9
    assert world.share.spare() == world.room  # everything was given back


def test_an_input_without_room_asks_for_it_and_others_pass():
    world = World(room=100 * 100)
    world.add(wanted("large", 300), wanted("small", 16))
    world.step()
    assert [(one.request_id, one.needed_bytes, one.headroom_bytes) for one in world.asked] == [("large", 30000, 10000)]
    assert {one.id: one.waiting_for for one in world.scheduler.statuses()} == {"large": "memory", "small": "slot"}
    world.run()
    assert world.vectors("small") == [16]
    world.room = 100 * 400
    world.scheduler.room_made("large")
    world.run()
    assert world.vectors("large") == [300]
    assert len(world.asked) == 1


def test_without_room_and_without_others_it_is_refused():
    world = World(room=100)
    world.add(wanted("large", 300))
    world.step()
    world.scheduler.room_made("large")
    world.run()
    assert isinstance(world.answers["large"], PrefillMemoryExceeded)
    assert world.answers["large"].estimated_bytes == 30000
    assert not world.scheduler.waiting


def test_while_others_run_it_waits_for_them_but_not_for_ever():
    world = World(room=100, hold_timeout=10.0)
    other = world.share.stake("other")
    other.set(0, 1)
    world.add(wanted("first", 300), wanted("second", 300))
    world.run()
    for request_id in ("first", "second"):
        world.scheduler.room_made(request_id)
    world.run()
    assert not world.answers
    assert not world.scheduler.has_work
    world.room = 100 * 300
    other.set(0, 0)
    assert world.woken == 1
    world.scheduler.memory_changed()
    other.set(0, 1)
    world.step()
    assert world.vectors("first") == [300]
    world.room = 100
    world.run()
    world.now = 11.0
    world.share.changed()
    world.scheduler.memory_changed()
    world.run()
    assert isinstance(world.answers["second"], MemoryWaitTimeout)


def test_engines_that_are_held_do_not_wait_for_each_other():
    one, other = World(room=100 * 100), World()
    other.share = one.share
    other.scheduler = EmbeddingScheduler(
        other.encoder, EngineConfig("n", "n", 512), memory=one.share.stake("n"), on_memory=other._wake
    )
    for world, name in ((one, "a"), (other, "b")):
        world.add(wanted(name, 16, 300))  # it begins, and then there is no memory for the rest
        world.step()
        world.step()
    for world, name in ((one, "a"), (other, "b")):
        world.scheduler.room_made(name)
        world.run()
    assert isinstance(one.answers["a"], PrefillMemoryExceeded)
    assert isinstance(other.answers["b"], PrefillMemoryExceeded)


def test_a_probe_that_fails_is_the_fault_of_the_step_that_meets_it():
    world = World()
    fails = True

    def headroom() -> int:
        if fails:
            raise OSError("no such file")
        return 10**9

    world.share.headroom = headroom
    world.add(wanted("a", 16))
    world.step()
    assert isinstance(world.answers["a"], StepFailed)
    fails = False
    world.add(wanted("b", 16))
    world.run()
    assert world.vectors("b") == [16]
    assert world.dead is None


def test_others_that_end_during_a_look_are_not_missed():
    world = World(room=100)
    other = world.share.stake("other")
    other.set(0, 1)
    world.at_reclaim = lambda: other.set(0, 0)
    world.add(wanted("a", 300))
    world.run()
    world.scheduler.room_made("a")
    world.run()
    assert not world.answers
    assert world.woken == 1


def test_while_it_is_held_others_are_asked_again():
    world = World(room=100, hold_timeout=10.0)
    world.share.stake("other").set(0, 1)
    world.add(wanted("a", 300))
    world.run()
    world.scheduler.room_made("a")
    world.run()
    assert len(world.asked) == 1
    for moment in (0.5, 1.5):
        world.now = moment
        world.scheduler.memory_changed()
        world.run()
    assert len(world.asked) == 2
    world.room = 100 * 300
    world.scheduler.room_made("a")
    world.run()
    assert world.vectors("a") == [300]


def test_a_brake_makes_the_smallest_steps():
    world = World()
    for _ in range(4):
        world.add(wanted("a", *[128] * 64))
        world.run()
    assert max(map(len, world.encoder.batches)) > LEAST // 128
    world.encoder.batches.clear()
    world.share.brake_to(Brake(hold=True, slow=True))
    world.add(wanted("b", *[128] * 64))
    world.run()
    assert max(map(len, world.encoder.batches)) == LEAST // 128
