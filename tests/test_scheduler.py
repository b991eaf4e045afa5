"""The scheduler beside a runner that fails on command: containment, memory and order."""

from dataclasses import replace
from pathlib import Path

import pytest
from fake_runner import FakePrefixes, FakeRunner, FakeText

from mlxd.engines.backend import RunnerStep, TextPiece
from mlxd.engines.errors import EngineDead, FootprintExceeded, GuideError, PrefillMemoryExceeded, StepFailed
from mlxd.engines.memory_share import MemoryShare, MemoryStake
from mlxd.engines.scheduler import Scheduler
from mlxd.engines.types import EngineConfig, FinishReason, Request, RequestOutput, RequestState, SamplingParams


def request(name: str, tokens: int = 3, prompt: int = 4) -> Request:
    return Request(name, tuple(range(prompt)), SamplingParams(max_tokens=tokens))


def make(runner: FakeRunner | None = None, **options) -> Scheduler:
    fields = {"context_length": 1000, "max_running": 4} | options.pop("config", {})
    return Scheduler(runner or FakeRunner(), EngineConfig("m", Path("m"), **fields), clock=lambda: 50.0, **options)


def run(scheduler: Scheduler, steps: int = 50) -> dict[str, list]:
    got: dict[str, list] = {}
    for _ in range(steps):
        if not scheduler.has_work:
            break
        for ended, item in scheduler.step().deliveries:
            got.setdefault(ended.id, []).append(item)
    return got


def text_of(items: list[RequestOutput]) -> str:
    return "".join(item.text for item in items)


def test_requests_start_in_order_and_wait_for_a_slot():
    scheduler = make(config={"max_running": 2})
    for name in "abc":
        scheduler.add(request(name), 0.0)
    scheduler.step()
    states = {status.id: (status.state, status.waiting_for) for status in scheduler.statuses()}
    assert states == {
        "a": (RequestState.DECODING, None),
        "b": (RequestState.DECODING, None),
        "c": (RequestState.WAITING, "slot"),
    }
    got = run(scheduler)
    assert text_of(got["c"]) == "0 1 2 "
    assert got["c"][-1].finish_reason is FinishReason.LENGTH
    assert not scheduler.has_work


def test_a_step_takes_its_time_while_prompts_are_read_or_may_begin():
    runner = FakeRunner()
    scheduler = make(runner, config={"max_running": 2})
    assert not scheduler.takes_its_time
    scheduler.add(request("a", tokens=9), 0.0)
    assert scheduler.takes_its_time  # it will start
    decode, runner.step = runner.step, RunnerStep
    scheduler.step()
    assert scheduler.takes_its_time  # its prompt is not complete yet
    runner.step = decode
    scheduler.step()
    assert not scheduler.takes_its_time
    for name in "bc":
        scheduler.add(request(name, tokens=9), 0.0)
    assert scheduler.takes_its_time
    scheduler.step()
    assert scheduler.waiting == 1
    assert not scheduler.takes_its_time  # nobody can start


def test_a_failing_step_fails_only_what_was_running_and_the_batch_is_rebuilt():
    failures = iter([RuntimeError("metal says no")])

    def fail() -> None:
        error = next(failures, None)
        if error is not None:
            raise error

    runner = FakeRunner(fail)
    scheduler = make(runner, config={"max_running": 1})
    scheduler.add(request("a"), 0.0)
    scheduler.add(request("b"), 0.0)
    got = run(scheduler)
    assert isinstance(got["a"][0], StepFailed)
    assert "metal says no" in str(got["a"][0])
    assert text_of(got["b"]) == "0 1 2 "
    assert runner.rebuilds == 1


def test_the_engine_is_dead_after_three_failing_steps_in_a_row():
    def fail() -> None:
        raise RuntimeError("again")

    scheduler = make(FakeRunner(fail), config={"max_running": 1})
    for name in "abcd":
        scheduler.add(request(name), 0.0)
    results = [scheduler.step() for _ in range(3)]
    assert [result.dead is not None for result in results] == [False, False, True]
    assert [(ended.id, type(item)) for ended, item in results[2].deliveries][-1] == ("d", EngineDead)
    assert not scheduler.has_work


def test_a_good_step_between_failures_keeps_the_engine_alive():
    plan = iter([True, True, False] * 3)

    def fail() -> None:
        if next(plan, False):
            raise RuntimeError("now and then")

    scheduler = make(FakeRunner(fail), config={"max_running": 1})
    for number in range(9):
        scheduler.add(request(str(number), tokens=1), 0.0)
    results = [scheduler.step() for _ in range(9)]
    assert not any(result.dead for result in results)


def test_a_request_that_cannot_be_inserted_fails_alone():
    def refuse(what: Request) -> None:
        if what.id == "bad":
            raise ValueError("no such sampler")

    scheduler = make(FakeRunner(fail_insert=refuse))
    for name in ("good", "bad", "fine"):
        scheduler.add(request(name), 0.0)
    got = run(scheduler)
    assert isinstance(got["bad"][0], StepFailed)
    assert text_of(got["good"]) == text_of(got["fine"]) == "0 1 2 "


def test_a_row_whose_text_cannot_be_decoded_fails_alone():
    class Broken:
        stopped = False

        def push(self, token: int) -> TextPiece:
            raise KeyError(token)

        def finish(self) -> TextPiece:
            return TextPiece()

    runner = FakeRunner()
    good_text = runner.text_stream
    runner.text_stream = lambda what: Broken() if what.id == "bad" else good_text(what)
    scheduler = make(runner)
    scheduler.add(request("bad"), 0.0)
    scheduler.add(request("good"), 0.0)
    got = run(scheduler)
    assert isinstance(got["bad"][0], StepFailed)
    assert text_of(got["good"]) == "0 1 2 "
    assert runner.rows == {}


def test_a_row_that_can_have_no_text_is_never_in_the_batch():
    def refuse(_: Request) -> FakeText:
        raise KeyError("no detokenizer")

    runner = FakeRunner()
    runner.text_stream = refuse
    scheduler = make(runner)
    scheduler.add(request("bad"), 0.0)
    assert isinstance(run(scheduler)["bad"][0], StepFailed)
    assert runner.rows == {}


def test_a_request_whose_text_cannot_be_ended_is_cancelled_with_an_error():
    class Broken(FakeText):
        def finish(self) -> TextPiece:
            raise KeyError("half a character")

    runner = FakeRunner()
    runner.text_stream = lambda _: Broken()
    scheduler = make(runner)
    scheduler.add(request("bad", tokens=100), 0.0)
    scheduler.step()
    [(_, item)] = scheduler.cancel("bad").deliveries
    assert isinstance(item, StepFailed)
    assert runner.rows == {}
    assert not scheduler.has_work


def test_aborted_requests_are_gone_from_queue_and_batch():
    runner = FakeRunner()
    scheduler = make(runner, config={"max_running": 1})
    scheduler.add(request("a", tokens=100), 0.0)
    scheduler.add(request("b"), 0.0)
    scheduler.step()
    scheduler.abort("b")
    scheduler.abort("a")
    scheduler.abort("unknown")
    assert runner.rows == {}
    assert not scheduler.has_work


def test_abort_all_ends_waiting_and_running_with_the_same_error():
    runner = FakeRunner()
    scheduler = make(runner, config={"max_running": 1})
    scheduler.add(request("a", tokens=100), 0.0)
    scheduler.add(request("b"), 0.0)
    scheduler.step()
    error = FootprintExceeded(2, 1, "memory.ceiling")
    assert [(ended.id, item) for ended, item in scheduler.abort_all(error).deliveries] == [("a", error), ("b", error)]
    assert runner.rows == {}


def test_max_tokens_never_passes_the_context():
    scheduler = make(config={"context_length": 10})
    scheduler.add(Request("a", tuple(range(7)), SamplingParams()), 0.0)
    assert text_of(run(scheduler)["a"]) == "0 1 2 "


class Memory:
    """Headroom that a test sets; a prompt costs ten bytes a token until its first token came."""

    def __init__(self, headroom: int | None) -> None:
        self.headroom = headroom
        self.reclaims = 0

    def see(self) -> MemoryStake:
        return MemoryShare(lambda: self.headroom, lambda: self.headroom).stake("m")

    def reclaim(self) -> None:
        self.reclaims += 1


def with_memory(headroom: int | None, runner: FakeRunner | None = None) -> tuple[Memory, Scheduler]:
    memory = Memory(headroom)
    return memory, make(runner, memory=memory.see(), reclaim=memory.reclaim)


def test_a_prompt_that_fits_asks_for_nothing():
    _, scheduler = with_memory(40)
    scheduler.add(request("a"), 0.0)
    assert scheduler.step().eviction is None
    assert scheduler.running == 1


def test_prompts_that_start_together_do_not_get_the_same_memory_twice():
    memory, scheduler = with_memory(60)
    scheduler.add(request("a", tokens=50), 0.0)
    scheduler.add(request("b"), 0.0)
    eviction = scheduler.step().eviction
    assert (eviction.request_id, eviction.needed_bytes, eviction.headroom_bytes) == ("b", 80, 60)
    assert [status.waiting_for for status in scheduler.statuses()] == [None, "memory"]
    memory.headroom = 40
    scheduler.room_made("b")
    scheduler.step()
    assert scheduler.running == 2


def test_a_prompt_over_the_headroom_asks_once_and_starts_when_room_was_made():
    memory, scheduler = with_memory(39)
    scheduler.add(request("a"), 0.0)
    eviction = scheduler.step().eviction
    assert (eviction.request_id, eviction.needed_bytes, eviction.headroom_bytes) == ("a", 40, 39)
    assert not scheduler.has_work
    assert scheduler.statuses()[0].waiting_for == "memory"
    memory.headroom = 40
    scheduler.room_made("a")
    assert scheduler.step().eviction is None
    assert scheduler.running == 1


def test_a_prompt_is_refused_alone_when_no_room_could_be_made():
    memory, scheduler = with_memory(39)
    scheduler.add(request("big"), 0.0)
    scheduler.add(request("small", prompt=3), 0.0)
    scheduler.step()
    scheduler.room_made("big")
    got = run(scheduler)
    error = got["big"][0]
    assert isinstance(error, PrefillMemoryExceeded)
    assert (error.estimated_bytes, error.limit_bytes) == (40, 39)
    assert memory.reclaims == 1
    assert text_of(got["small"]) == "0 1 2 "


def test_a_prompt_is_held_while_running_requests_will_free_memory():
    memory, scheduler = with_memory(40)
    scheduler.add(request("a", tokens=5), 0.0)
    scheduler.step()
    memory.headroom = 0
    scheduler.add(request("b"), 0.0)
    scheduler.step()
    scheduler.room_made("b")
    scheduler.step()
    assert [status.waiting_for for status in scheduler.statuses() if status.id == "b"] == ["memory"]
    memory.headroom = 40
    got = run(scheduler)
    assert text_of(got["b"]) == "0 1 2 "


def test_clearing_caches_may_save_a_prompt_from_refusal():
    memory, scheduler = with_memory(39)

    def reclaim() -> None:
        memory.headroom = 40

    memory.reclaim = reclaim
    scheduler = make(memory=memory.see(), reclaim=reclaim)
    scheduler.add(request("a"), 0.0)
    scheduler.step()
    scheduler.room_made("a")
    assert text_of(run(scheduler)["a"]) == "0 1 2 "


@pytest.mark.parametrize("how", ["abort", "cancel"])
def test_a_request_that_awaits_room_can_leave(how):
    _, scheduler = with_memory(0)
    scheduler.add(request("a"), 0.0)
    scheduler.step()
    if how == "abort":
        scheduler.abort("a")
    else:
        assert scheduler.cancel("a").deliveries[0][1].cancelled
    scheduler.room_made("a")
    assert not scheduler.has_work


def test_a_request_whose_prefix_is_on_the_disk_starts_when_that_was_read():
    told = []
    runner = FakeRunner(prefixes=FakePrefixes(on_disk=True))
    scheduler = make(runner, on_restored=lambda *what: told.append(what))
    scheduler.add(request("a"), 0.0)
    assert not scheduler.has_work
    assert not scheduler.step()
    runner.prefixes.restoring[0]("entry")
    assert told == [("a", "entry")]
    scheduler.restored(*told[0])
    assert runner.prefixes.adopted == ["entry"]
    assert text_of(run(scheduler)["a"]) == "0 1 2 "


def test_a_request_can_leave_while_the_disk_is_read():
    runner = FakeRunner(prefixes=FakePrefixes(on_disk=True))
    scheduler = make(runner)
    scheduler.add(request("a"), 0.0)
    assert scheduler.cancel("a").deliveries[0][1].cancelled
    scheduler.restored("a", None)
    assert not scheduler.has_work


def test_kept_prefixes_go_before_anybody_is_asked_for_room():
    runner = FakeRunner(prefixes=FakePrefixes(nbytes=25))
    scheduler = make(runner, memory=MemoryShare(lambda: 55 - runner.prefixes.nbytes).stake("m"))
    scheduler.add(request("a"), 0.0)
    assert scheduler.step().eviction is None
    assert runner.prefixes.nbytes == 15
    assert scheduler.running == 1


def test_a_row_that_cannot_keep_to_its_form_is_the_callers_fault():
    runner = FakeRunner()
    scheduler = make(runner)
    scheduler.add(request("bad"), 0.0)
    whole_step = runner.step
    runner.step = lambda: replace(whole_step(), failed=((1, GuideError("it takes too long")),))
    got = run(scheduler, steps=1)
    assert isinstance(got["bad"][-1], GuideError)


def test_a_row_that_the_runner_had_to_drop_fails_alone():
    runner = FakeRunner()
    scheduler = make(runner)
    scheduler.add(request("bad"), 0.0)
    scheduler.add(request("good"), 0.0)
    whole_step = runner.step

    def step() -> RunnerStep:
        runner.step = whole_step
        del runner.rows[1]
        return replace(whole_step(), failed=((1, ValueError("no such token")),))

    runner.step = step
    got = run(scheduler)
    assert "no such token" in str(got["bad"][0])
    assert isinstance(got["bad"][0], StepFailed)
    assert text_of(got["good"]) == "0 1 2 "
