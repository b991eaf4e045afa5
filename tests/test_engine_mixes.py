"""Random mixes of requests on one engine: nobody's answer depends on the others, and nothing is left behind."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count

import mlx.core as mx
import pytest
from engine_harness import at_rest, engine_on, lane_pool, until_idle
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlxd.engines.core import EngineCore
from mlxd.engines.types import FinishReason, Request, RequestOutput, SamplingParams

OPTIONS = {
    "context_length": 1024,
    "prefill_chunk": 64,
    "max_stall": 0.01,
    "max_running": 6,
    "kv_bytes_per_token": 256,
    "prefix_cache_bytes": 2**20,
}
# A common beginning, so that the prefix cache is used, and lengths from one token to many chunks.
COMMON = tuple(range(10, 110))
PROMPTS = [(7,), (5, 6, 7), COMMON, (*COMMON, 3, 9), (*COMMON, *range(200, 400)), tuple(range(300, 330)), (9,) * 250]

SAMPLINGS = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 24),
    temperature=st.sampled_from([0.0, 0.7, 1.5]),
    seed=st.integers(0, 2),
    top_p=st.sampled_from([1.0, 0.8]),
    top_k=st.sampled_from([0, 5]),
    stop=st.sampled_from([(), ("e",), ("th", "q")]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.8]),
    logit_bias=st.sampled_from([{}, {17: 4.0}]),
)


@dataclass(frozen=True)
class Visit:
    """One request: it arrives after `after` outputs of everybody, and leaves after `leaves` of its own, if at all."""

    prompt: int
    sampling: SamplingParams
    after: int
    leaves: int | None
    by_cancel: bool


VISITS = st.lists(
    st.builds(
        Visit,
        prompt=st.integers(0, len(PROMPTS) - 1),
        sampling=SAMPLINGS,
        after=st.integers(0, 12),
        leaves=st.one_of(st.none(), st.integers(0, 4)),
        by_cancel=st.booleans(),
    ),
    min_size=1,
    max_size=9,
)


class House:
    """An engine with a clock that counts outputs."""

    def __init__(self, engine: EngineCore, numbers: Iterator[int]) -> None:
        self._engine = engine
        self._numbers = numbers
        self._outputs = 0
        self._changed = asyncio.Condition()
        self._live = 0

    async def receive(self, visits: list[Visit]) -> list[tuple[str, list[RequestOutput]]]:
        return await asyncio.gather(*[self._receive(visit) for visit in visits])

    async def _receive(self, visit: Visit) -> tuple[str, list[RequestOutput]]:
        async with self._changed:
            # those who wait for more outputs than there will be come when nobody else is left to make any
            await self._changed.wait_for(lambda: self._outputs >= visit.after or self._live == 0)
            self._live += 1
        outputs: list[RequestOutput] = []
        request = Request(f"v{next(self._numbers)}", PROMPTS[visit.prompt], visit.sampling)
        async with self._engine.generate(request) as stream:
            if visit.leaves == 0:
                await self._give_up(visit, request, stream, outputs)
            else:
                async for output in stream:
                    outputs.append(output)
                    await self._tick()
                    if len(outputs) == visit.leaves and output.finish_reason is None:
                        await self._give_up(visit, request, stream, outputs)
                        break
        async with self._changed:
            self._live -= 1
            self._changed.notify_all()
        return "".join(output.text for output in outputs), outputs

    async def _give_up(self, visit: Visit, request: Request, stream, outputs: list[RequestOutput]) -> None:
        if not visit.by_cancel:
            return
        assert self._engine.cancel(request.id)
        outputs += [output async for output in stream]

    async def _tick(self) -> None:
        async with self._changed:
            self._outputs += 1
            self._changed.notify_all()


class Alone:
    """What each request gives on an engine of its own, without a prefix cache."""

    def __init__(self, engine: EngineCore, numbers: Iterator[int]) -> None:
        self._engine = engine
        self._numbers = numbers
        self._known: dict[tuple[int, str], tuple[str, FinishReason | None, int]] = {}

    async def of(self, visit: Visit) -> tuple[str, FinishReason | None, int]:
        key = (visit.prompt, repr(visit.sampling))
        if key not in self._known:
            request = Request(f"a{next(self._numbers)}", PROMPTS[visit.prompt], visit.sampling)
            async with self._engine.generate(request) as stream:
                outputs = [output async for output in stream]
            await at_rest(self._engine)
            last = outputs[-1]
            text = "".join(output.text for output in outputs)
            self._known[key] = (text, last.finish_reason, last.usage.completion_tokens)
        return self._known[key]


@pytest.fixture(scope="module")
def runner():
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def houses(runner, micro_model):
    """Two engines on the same model: one for the mixes, one where everybody is alone."""
    stop = asyncio.Event()

    async def hold(ready: asyncio.Future[tuple[EngineCore, EngineCore]]) -> None:
        async with (
            lane_pool() as lanes,
            engine_on(micro_model, lanes, **OPTIONS) as mixed,
            engine_on(micro_model, lanes, **{**OPTIONS, "prefix_cache_bytes": 0}) as alone,
        ):
            ready.set_result((mixed, alone))
            await stop.wait()

    async def start():
        ready: asyncio.Future[tuple[EngineCore, EngineCore]] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(hold(ready))
        return task, await ready

    task, engines = runner.run(start())
    numbers = count()
    yield engines[0], Alone(engines[1], numbers), numbers
    stop.set()

    async def wait() -> None:
        await task

    runner.run(wait())


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(visits=VISITS)
def test_nobody_is_mixed_up_lost_or_kept_for_ever(runner, houses, visits):
    mixed, alone, numbers = houses

    async def check() -> None:
        async with asyncio.timeout(60):
            results = await House(mixed, numbers).receive(visits)
            await until_idle(mixed)
        for visit, (text, outputs) in zip(visits, results, strict=True):
            whole, reason, tokens = await alone.of(visit)
            if outputs and outputs[-1].finish_reason is not None and not outputs[-1].cancelled:
                assert (text, outputs[-1].finish_reason) == (whole, reason)
                assert outputs[-1].usage.completion_tokens == tokens
            else:
                assert visit.leaves is not None
                assert whole.startswith(text.rstrip("\ufffd"))
            counts = [output.usage.completion_tokens for output in outputs]
            assert counts == sorted(counts)
        assert mixed.stats().kv_bytes == 0
        assert mixed.stats().prefix_cache_bytes <= OPTIONS["prefix_cache_bytes"]

    runner.run(check())


def test_after_a_thousand_aborts_at_random_moments_the_engine_is_as_fresh(runner, houses):
    mixed, alone, numbers = houses
    chance = random.Random(5)
    probe = Visit(4, SamplingParams(max_tokens=20, temperature=1.5, seed=1), 0, None, by_cancel=False)

    def visit() -> Visit:
        sampling = replace(probe.sampling, seed=chance.randrange(9), max_tokens=600)
        return Visit(chance.randrange(len(PROMPTS)), sampling, 0, chance.randrange(4), chance.random() < 0.5)

    async def check() -> None:
        await mixed.trim_prefix_cache(0)
        await House(mixed, numbers).receive([probe])
        await mixed.trim_prefix_cache(0)
        before = mx.get_active_memory()
        for _ in range(50):
            async with asyncio.timeout(60):
                await House(mixed, numbers).receive([visit() for _ in range(20)])
        await until_idle(mixed)
        assert mixed.stats().kv_bytes == 0
        ((text, _),) = await House(mixed, numbers).receive([probe])
        assert text == (await alone.of(probe))[0]
        await mixed.trim_prefix_cache(0)
        assert mx.get_active_memory() <= before + 64 * 1024

    runner.run(check())
