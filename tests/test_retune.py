"""A loaded engine takes other limits while it works: what runs goes on, and every answer stays what it was."""

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from engine_harness import GREEDY, answer, at_rest, chat, collect, engine_on, lane_pool
from fake_runner import FakeRunner

from mlxd.engines.core import EngineCore
from mlxd.engines.errors import EngineClosed, EngineQueueFull
from mlxd.engines.pacer import PrefillPacer
from mlxd.engines.scheduler import Scheduler
from mlxd.engines.types import EngineConfig, EngineLimits, Request, RequestState, SamplingParams

PROMPTS = ["one question", "another question, " * 6, "a third", "the last of them " * 3]
LONG = replace(GREEDY, max_tokens=200)
LIMITS = EngineLimits(max_running=4, max_waiting=8, prefill_chunk=128, max_stall=0.25, prefix_spill_timeout=1.0)


@pytest.fixture
async def lanes():
    async with lane_pool() as pool:
        yield pool


class Steps:
    """A step lock that counts the steps."""

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()
        self.count += 1

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class Streams:
    """Answers that are read side by side; `happened` has when each began and ended, in order."""

    def __init__(self, engine: EngineCore) -> None:
        self._engine = engine
        self._begun: dict[str, asyncio.Event] = {}
        self._tasks: list[asyncio.Task[str]] = []
        self.happened: list[str] = []

    def start(self, name: str, prompt: str) -> None:
        self._begun[name] = asyncio.Event()
        self._tasks.append(asyncio.create_task(self._read(name, chat(self._engine, prompt, LONG))))

    async def begun(self, *names: str) -> None:
        async with asyncio.timeout(20):
            for name in names:
                await self._begun[name].wait()

    async def texts(self) -> list[str]:
        async with asyncio.timeout(60):
            return await asyncio.gather(*self._tasks)

    async def _read(self, name: str, request: Request) -> str:
        text = ""
        async with self._engine.generate(request) as outputs:
            async for output in outputs:
                if not text:
                    self.happened.append(f"{name} begins")
                    self._begun[name].set()
                text += output.text
        self.happened.append(f"{name} ends")
        return text


async def test_with_a_higher_max_running_who_waits_starts_beside_those_that_run(tiny_model, lanes):
    async with engine_on(tiny_model, lanes, max_running=1) as engine:
        alone = [await answer(engine, prompt, LONG) for prompt in PROMPTS]
        streams = Streams(engine)
        streams.start("a", PROMPTS[0])
        await streams.begun("a")
        for name, prompt in zip("bcd", PROMPTS[1:], strict=True):
            streams.start(name, prompt)
        engine.retune(replace(engine.config.limits, max_running=4))
        assert await streams.texts() == alone
    assert set(streams.happened[:4]) == {"a begins", "b begins", "c begins", "d begins"}


async def test_with_a_lower_max_running_those_that_run_finish_and_none_starts_before(tiny_model, lanes):
    async with engine_on(tiny_model, lanes, max_running=3) as engine:
        alone = [await answer(engine, prompt, LONG) for prompt in PROMPTS]
        streams = Streams(engine)
        for name, prompt in zip("abc", PROMPTS, strict=False):
            streams.start(name, prompt)
        await streams.begun("a", "b", "c")
        engine.retune(replace(engine.config.limits, max_running=1))
        streams.start("d", PROMPTS[3])
        assert await streams.texts() == alone
    assert streams.happened[-2:] == ["d begins", "d ends"]


async def test_limits_that_go_up_and_down_while_streams_run_change_no_answer(tiny_model, lanes):
    async with engine_on(tiny_model, lanes, max_running=2) as engine:
        alone = [await answer(engine, prompt, LONG) for prompt in PROMPTS]
        streams = Streams(engine)
        for name, prompt in zip("abcd", PROMPTS, strict=True):
            streams.start(name, prompt)
        for name, running, chunk, stall in (("a", 3, 16, 0.001), ("b", 1, 64, None), ("c", 4, 32, 0.05)):
            await streams.begun(name)
            engine.retune(EngineLimits(running, 8, chunk, stall, 1.0))
        assert await streams.texts() == alone


async def counted(engine: EngineCore, steps: Steps) -> int:
    await at_rest(engine)
    return steps.count


async def test_a_prompt_that_is_being_read_goes_on_with_the_new_chunk(tiny_model, lanes):
    steps, once = Steps(), replace(GREEDY, max_tokens=1)
    options = {"max_stall": None, "prefill_chunk": 16, "step_lock": steps}
    async with engine_on(tiny_model, lanes, **options) as engine:
        request = chat(engine, "word " * 400, once)
        slow = [await collect(engine, request), await counted(engine, steps)]
        engine.retune(replace(engine.config.limits, prefill_chunk=512))
        fast = [await collect(engine, replace(request, id="again")), await counted(engine, steps) - slow[1]]
    assert slow[1] >= len(request.prompt) / 16
    # beside its chunks: its last token, what is generated, and keeping what was read
    assert fast[1] <= len(request.prompt) / 512 + 4
    assert [output.text for output in fast[0]] == [output.text for output in slow[0]]


async def test_the_config_has_the_new_limits_at_once_and_keeps_the_rest(tiny_model, lanes):
    async with engine_on(tiny_model, lanes) as engine:
        before = engine.config
        engine.retune(LIMITS)
        assert engine.config.limits == LIMITS
        assert engine.config.with_limits(before.limits) == before


async def test_a_lower_max_waiting_refuses_the_next_request_and_none_of_those_that_wait(tiny_model, lanes):
    async with engine_on(tiny_model, lanes, max_running=1, max_waiting=3) as engine:
        streams = Streams(engine)
        for name, prompt in zip("abc", PROMPTS, strict=False):
            streams.start(name, prompt)
        await streams.begun("a")
        engine.retune(replace(engine.config.limits, max_waiting=2))
        with pytest.raises(EngineQueueFull, match="2"):
            engine.generate(chat(engine, "one more"))
        assert len(await streams.texts()) == 3


async def test_sequences_that_run_beyond_a_lowered_max_running_do_not_count_as_waiting(tiny_model, lanes):
    async with engine_on(tiny_model, lanes, max_running=3, max_waiting=1) as engine:
        streams = Streams(engine)
        for name, prompt in zip("abc", PROMPTS, strict=False):
            streams.start(name, prompt)
        await streams.begun("a", "b", "c")
        engine.retune(replace(engine.config.limits, max_running=1))
        async with engine.generate(chat(engine, "waits")) as waiting:
            with pytest.raises(EngineQueueFull):
                engine.generate(chat(engine, "one too many"))
            await streams.texts()
            assert (await anext(waiting)).text


async def test_limits_that_come_before_the_load_hold_after_it(tiny_model, lanes):
    engine = EngineCore(EngineConfig("tiny", tiny_model, 2048, max_running=4), lanes)
    engine.retune(replace(LIMITS, max_running=1))
    await engine.load()
    streams = Streams(engine)
    for name, prompt in zip("abc", PROMPTS, strict=False):
        streams.start(name, prompt)
    await streams.texts()
    assert await engine.close(EngineClosed("the test is over"), 20)
    assert streams.happened == ["a begins", "a ends", "b begins", "b ends", "c begins", "c ends"]


def request(name: str) -> Request:
    return Request(name, (1, 2, 3), SamplingParams(max_tokens=3))


def test_the_scheduler_admits_by_the_new_number_from_its_next_step_on():
    runner = FakeRunner()
    scheduler = Scheduler(runner, EngineConfig("m", Path("m"), 1000, max_running=1))
    for name in "abcd":
        scheduler.add(request(name), 0.0)
    scheduler.step()
    assert (scheduler.running, scheduler.waiting) == (1, 3)
    scheduler.retune(replace(LIMITS, max_running=3))
    scheduler.step()
    assert (scheduler.running, scheduler.waiting) == (3, 1)
    scheduler.retune(replace(LIMITS, max_running=1))
    scheduler.step()
    states = {status.id: status.state for status in scheduler.statuses()}
    assert states == {"b": RequestState.DECODING, "c": RequestState.DECODING, "d": RequestState.WAITING}
    assert runner.retuned == [replace(LIMITS, max_running=3), replace(LIMITS, max_running=1)]


def test_a_pacer_with_other_bounds_keeps_what_it_measured():
    pacer, fresh = PrefillPacer(2048, 0.25), PrefillPacer(512, 0.05)
    for one in (pacer, fresh):
        one.observe_decode(0.01)
        one.observe(64, 0.02)
    pacer.retune(512, 0.05)
    assert pacer.chunk(1, decoding=True, depth=64) == fresh.chunk(1, decoding=True, depth=64)
    pacer.retune(512, None)
    assert pacer.chunk(1, decoding=True) == 512
