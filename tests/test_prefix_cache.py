"""Prompts that begin alike: what is kept, for how long, and that nobody can tell from the answer."""

import asyncio
from dataclasses import replace

import mlx.core as mx
import pytest
from engine_harness import GREEDY, chat, collect, engine_on, lane_pool, until_idle
from tiny_kinds import HYBRID, SLIDING, kind_model

from mlxd.engines.memory_share import MemoryShare
from mlxd.engines.types import Request, SamplingParams

PLENTY = 256 * 2**20


@pytest.fixture
async def lanes():
    async with lane_pool() as pool:
        yield pool


@pytest.fixture
def kinds(tiny_model):
    return {"plain": tiny_model, "hybrid": kind_model("hybrid", HYBRID), "sliding": kind_model("sliding", SLIDING)}


def tokens_of(engine, words: int, seed: str = "") -> tuple[int, ...]:
    text = " ".join(f"{seed}word{number}" for number in range(words))
    return tuple(engine.tokenizer.encode_chat([{"role": "user", "content": text}]))


_numbers = iter(range(10**6))


async def ask(engine, prompt, max_tokens: int = 12):
    """Text, cached tokens and all tokens of an answer."""
    request = Request(f"p{next(_numbers)}", tuple(prompt), replace(GREEDY, max_tokens=max_tokens))
    outputs = await collect(engine, request)
    return "".join(output.text for output in outputs), outputs[-1].usage


@pytest.mark.parametrize("kind", ["plain", "hybrid", "sliding"])
async def test_a_prompt_asked_again_is_processed_from_its_last_token_and_answered_alike(kinds, lanes, kind):
    async with engine_on(kinds[kind], lanes, prefix_cache_bytes=PLENTY) as engine:
        prompt = tokens_of(engine, 120)
        cold, first = await ask(engine, prompt)
        warm, second = await ask(engine, prompt)
    assert warm == cold
    assert (first.cached_tokens, second.cached_tokens) == (0, len(prompt) - 1)
    assert second.prompt_tokens == len(prompt)


@pytest.mark.parametrize("kind", ["plain", "hybrid", "sliding"])
async def test_a_conversation_goes_on_from_what_was_answered(kinds, lanes, kind):
    async with engine_on(kinds[kind], lanes, prefix_cache_bytes=PLENTY) as engine:
        prompt = tokens_of(engine, 60)
        await ask(engine, prompt)
        longer = (*prompt, *tokens_of(engine, 20, "more"))
        warm, usage = await ask(engine, longer)
    async with engine_on(kinds[kind], lanes) as engine:
        cold, _ = await ask(engine, longer)
    assert warm == cold
    assert usage.cached_tokens >= len(prompt) - 1


@pytest.mark.parametrize("kind", ["plain", "hybrid", "sliding"])
async def test_prompts_with_a_common_beginning_share_it(kinds, lanes, kind):
    async with engine_on(kinds[kind], lanes, prefix_cache_bytes=PLENTY, context_length=8192) as engine:
        begin = tokens_of(engine, 400)
        first, second = (*begin, *tokens_of(engine, 20, "a")), (*begin, *tokens_of(engine, 30, "b"))
        await ask(engine, first)
        warm, usage = await ask(engine, second)
    async with engine_on(kinds[kind], lanes, context_length=8192) as engine:
        cold, _ = await ask(engine, second)
    assert warm == cold
    # caches that cannot be cut back are kept every so often
    assert usage.cached_tokens >= (len(begin) if kind == "plain" else 512)


async def test_requests_with_the_same_prompt_at_once_process_it_once(tiny_model, lanes):
    options = {"prefix_cache_bytes": PLENTY, "kv_bytes_per_token": 4096}
    async with engine_on(tiny_model, lanes, **options) as engine:
        prompt = tokens_of(engine, 100)
        answers = await asyncio.gather(*[ask(engine, prompt) for _ in range(4)])
        assert engine.stats().cached_tokens == 3 * (len(prompt) - 1)
    assert len({text for text, _ in answers}) == 1


async def test_what_an_aborted_prompt_had_processed_is_kept_for_the_retry(tiny_model, lanes):
    async with engine_on(tiny_model, lanes, prefix_cache_bytes=PLENTY, prefill_chunk=32) as engine:
        prompt = tokens_of(engine, 300)
        request = Request("first", prompt, GREEDY)
        async with engine.generate(request):
            async with asyncio.timeout(20):
                while not engine.stats().kv_bytes:
                    await asyncio.sleep(0.002)
        await until_idle(engine)
        _, usage = await ask(engine, prompt)
    assert usage.cached_tokens >= 32


async def test_without_a_budget_nothing_is_kept(tiny_model, lanes):
    async with engine_on(tiny_model, lanes) as engine:
        prompt = tokens_of(engine, 40)
        await ask(engine, prompt)
        _, usage = await ask(engine, prompt)
        assert engine.stats().prefix_cache_bytes == 0
    assert usage.cached_tokens == 0


async def test_the_budget_is_never_passed_and_the_oldest_leave_first(tiny_model, lanes):
    budget = 3 * 2**20
    async with engine_on(tiny_model, lanes, prefix_cache_bytes=budget) as engine:
        prompts = [tokens_of(engine, 60, f"{number}") for number in range(6)]
        for prompt in prompts:
            await ask(engine, prompt)
            assert 0 < engine.stats().prefix_cache_bytes <= budget
        newest = (await ask(engine, prompts[-1]))[1].cached_tokens
        oldest = (await ask(engine, prompts[0]))[1].cached_tokens
    assert newest == len(prompts[-1]) - 1
    assert oldest < 60  # the chat template's first tokens are in all of them


async def test_a_trim_gives_the_bytes_back_before_it_returns(tiny_model, lanes):
    async with engine_on(tiny_model, lanes, prefix_cache_bytes=PLENTY) as engine:
        await ask(engine, tokens_of(engine, 100))
        held = engine.stats().prefix_cache_bytes
        await engine.trim_prefix_cache(0)
        await ask(engine, (5, 6, 7))
    assert held > 0
    assert engine.stats().prefix_cache_bytes == 0


async def test_nothing_is_kept_when_memory_is_short(tiny_model, lanes):
    measured = iter([10**9])  # enough to start with, and little from then on
    memory = MemoryShare(headroom=lambda: next(measured, 1000)).stake("m")
    async with engine_on(tiny_model, lanes, prefix_cache_bytes=PLENTY, memory=memory) as engine:
        await ask(engine, tokens_of(engine, 100))
        assert engine.stats().prefix_cache_bytes == 0


async def kept_bytes(engine):
    """What is kept once the lane has kept what ended, behind its last output."""
    await engine.trim_prefix_cache(PLENTY)
    return engine.stats().prefix_cache_bytes


async def test_a_prompt_without_room_takes_it_from_kept_prefixes_first(tiny_model, lanes):
    asked = []
    limit = [10**9]
    memory = MemoryShare(headroom=lambda: limit[0] - mx.get_active_memory()).stake("m")

    async def make_room(request):
        asked.append(request)

    options = {"prefix_cache_bytes": PLENTY, "memory": memory, "prefill_eviction_callback": make_room}
    async with engine_on(tiny_model, lanes, **options) as engine:
        await ask(engine, tokens_of(engine, 400))
        held = await kept_bytes(engine)
        assert held > 2**20
        limit[0] = mx.get_active_memory() + 2**20
        await ask(engine, tokens_of(engine, 20, "other"))
        assert asked == []
        assert await kept_bytes(engine) < held


async def test_sampled_answers_are_the_same_warm_and_cold(tiny_model, lanes):
    sampling = SamplingParams(max_tokens=20, temperature=1.0, seed=7, repetition_penalty=1.2, presence_penalty=0.5)
    async with engine_on(tiny_model, lanes, prefix_cache_bytes=PLENTY) as engine:
        cold = await collect(engine, chat(engine, "the same words " * 30, sampling))
        warm = await collect(engine, chat(engine, "the same words " * 30, sampling))
    assert warm[-1].usage.cached_tokens > 0
    assert "".join(o.text for o in warm) == "".join(o.text for o in cold)
