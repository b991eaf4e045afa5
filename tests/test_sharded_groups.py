"""Models on two and three ranks, split in both ways, say what one process says, whoever comes and leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from engine_harness import GREEDY, answer, chat, engine_on, lane_pool, until_idle
from sharded_harness import PIPES, THREE, TWO, Group, ShardedHost, groups, ranks_of, sharded_host
from worker_harness import asked, is_gone, pid_of, read, worker_engine, worker_pool

from mlxd.engines.core import EngineCore
from mlxd.engines.errors import EngineClosed
from mlxd.engines.guidance import check_guide
from mlxd.engines.tokenizer import Tokenizer
from mlxd.engines.types import Guide, GuideKind, SamplingParams

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCHEMA = Guide(GuideKind.JSON_SCHEMA, '{"type":"object","properties":{"a":{"enum":[1,2]}},"required":["a"]}')
SAMPLINGS = [
    GREEDY,
    SamplingParams(max_tokens=24, temperature=1.0, seed=7, top_p=0.9, repetition_penalty=1.2),
    SamplingParams(max_tokens=24, temperature=0, logprobs=3, logit_bias={5: 2.0, 9: -100.0}),
    SamplingParams(max_tokens=24, temperature=0, min_tokens=20, stop=("e", "import")),
    SamplingParams(max_tokens=24, temperature=0, presence_penalty=1.8, frequency_penalty=1.2),
]


@pytest.fixture(scope="module", params=groups(TWO, PIPES), ids=str)
def group(request: pytest.FixtureRequest) -> Group:
    return request.param


@pytest.fixture(scope="module")
def tiny_model(group: Group) -> Path:
    return group.folder


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lanes(group: Group, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ShardedHost]:
    async with sharded_host(tmp_path_factory.mktemp("sharded"), group.shards) as host:
        yield host


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(tiny_model: Path, lanes: Any) -> AsyncIterator[EngineCore]:
    async with engine_on(tiny_model, lanes, context_length=4096, prefill_chunk=32, prefix_cache_bytes=10**7) as engine:
        yield engine


async def texts(engine: EngineCore, tokenizer: Tokenizer) -> list[str]:
    """What an engine says: alone, all at once, guided, and again from kept prefixes."""
    prompts = [f"{number} import os, please " * (1 + 20 * number) for number in range(len(SAMPLINGS))]
    alone = [await answer(engine, prompt, params) for prompt, params in zip(prompts, SAMPLINGS, strict=True)]
    asked = [answer(engine, prompt, params) for prompt, params in zip(prompts, SAMPLINGS, strict=True)]
    together = await asyncio.gather(*asked)
    guide = await asyncio.to_thread(check_guide, tokenizer, SCHEMA)
    guided = await answer(engine, "in form", replace(GREEDY, guide=guide, max_tokens=40))
    longer = await answer(engine, prompts[2] + "and one more", GREEDY)
    return [*alone, *together, guided, longer]


async def test_texts_are_those_of_one_process(engine: EngineCore, lanes: ShardedHost, tiny_model: Path) -> None:
    assert lanes.remote is not None
    said = await texts(engine, lanes.remote)
    async with lane_pool() as pool, engine_on(tiny_model, pool, prefill_chunk=32, prefix_cache_bytes=10**7) as alone:
        assert said == await texts(alone, alone.tokenizer)
    assert engine.stats().cached_tokens > 0


async def test_kept_prefixes_come_and_go_on_all_ranks(tiny_model: Path, lanes: Any) -> None:
    """A budget for one prompt or two: ranks that kept other ones than rank 0 would answer something else, or fail."""
    prompts = [f"{number} what is this " * 12 for number in range(4)]
    async with engine_on(tiny_model, lanes, prefix_cache_bytes=400_000, prefill_chunk=16) as engine:
        first = [await answer(engine, prompt) for prompt in prompts]
        assert [await answer(engine, prompt) for prompt in reversed(prompts)] == first[::-1]
        await engine.trim_prefix_cache(0)
        assert engine.stats().prefix_cache_bytes == 0
        assert await asyncio.gather(*[answer(engine, prompt) for prompt in prompts]) == first


async def test_rows_of_very_unequal_length_are_in_batches_of_their_own_on_all_ranks(
    tiny_model: Path, lanes: Any, engine: EngineCore
) -> None:
    """Each of them ends and keeps rows while the others go on."""
    prompts = [f"{number} why " * (1 + 40 * number) for number in range(4)]
    lengths = [replace(GREEDY, max_tokens=8 + 5 * number) for number in range(4)]
    alone = [await answer(engine, prompt, params) for prompt, params in zip(prompts, lengths, strict=True)]
    options = {"context_length": 4096, "prefill_chunk": 16, "prefix_cache_bytes": 10**7, "kv_bytes_per_token": 10**4}
    async with engine_on(tiny_model, lanes, **options) as apart:
        for _ in range(2):
            asked = [answer(apart, prompt, params) for prompt, params in zip(prompts, lengths, strict=True)]
            assert await asyncio.gather(*asked) == alone
        assert apart.stats().cached_tokens > 0
        # a batch whose only row has stopped is stepped once more, empty, beside those that go on
        stops = [replace(params, stop=(text[2:4],)) for params, text in zip(lengths, alone, strict=True)]
        asked = [answer(apart, prompt, params) for prompt, params in zip(prompts, stops, strict=True)]
        cut = [text[: text.index(text[2:4])] for text in alone]
        assert await asyncio.gather(*asked) == cut


async def test_many_come_and_leave_at_any_moment_and_the_ranks_stay_together(engine: EngineCore) -> None:
    wanted = await answer(engine, "who stays")

    async def leave(number: int) -> None:
        request = chat(engine, f"visitor {number} " * (1 + 9 * (number % 5)), replace(GREEDY, max_tokens=60))
        async with engine.generate(request) as outputs:
            for _ in range(number % 7):
                await anext(outputs)
            if number % 3 == 0:
                engine.cancel(request.id)
                async for _ in outputs:
                    pass

    stays = [answer(engine, "who stays") for _ in range(4)]
    said, *_ = await asyncio.gather(asyncio.gather(*stays), *[leave(number) for number in range(30)])
    assert said == [wanted] * 4
    await until_idle(engine)


@pytest.mark.parametrize("group", [TWO, THREE], ids=lambda group: group.name, indirect=False)
async def test_an_unload_leaves_no_process_and_no_port(tmp_path: Path, group: Group) -> None:
    async with worker_pool(tmp_path) as workers:
        engine = worker_engine(group.folder, workers, shards=group.shards)
        info = await engine.load()
        ranks = ranks_of(pid_of(engine))
        assert len(ranks) == group.ranks - 1
        assert info.weight_bytes > 0
        async with engine.generate(await asked(engine, "hello", GREEDY, "r")) as outputs:
            assert await read(outputs)
        assert await engine.close(EngineClosed("over"), 10)
        assert all(is_gone(rank.pid) for rank in ranks)
