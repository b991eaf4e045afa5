"""A draft model makes answers faster, never different."""

import asyncio
import json
import shutil
from dataclasses import replace
from functools import partial

import mlx.core as mx
import pytest
from engine_harness import GREEDY, answer, chat, collect, engine_on, lane_pool, until_idle, until_state
from tiny_kinds import HYBRID, kind_model
from tiny_models import build_tiny_model, cached

from mlxd.engines.core import EngineCore
from mlxd.engines.errors import LoadError, LoadFailure
from mlxd.engines.types import EngineConfig, FinishReason, Request, SamplingParams

PROMPTS = [f"question {number} " * (1 + 4 * number) for number in range(5)]


@pytest.fixture(scope="module")
def draft_model():
    """A quarter of a megabyte, with the tokenizer of the tiny model."""
    return cached("draft", partial(build_tiny_model, size="micro", vocab_size=2048))


@pytest.fixture
async def lanes():
    async with lane_pool() as pool:
        yield pool


async def answers(engine, sampling=GREEDY):
    return await asyncio.gather(*[answer(engine, prompt, sampling) for prompt in PROMPTS])


async def text_of(engine, request):
    return "".join(output.text for output in await collect(engine, request))


@pytest.mark.parametrize("draft_tokens", [1, 4])
async def test_greedy_answers_are_those_of_the_model_alone(tiny_model, draft_model, lanes, draft_tokens):
    async with engine_on(tiny_model, lanes) as engine:
        alone = await answers(engine)
    async with engine_on(tiny_model, lanes, draft=draft_model, draft_tokens=draft_tokens) as engine:
        assert await answers(engine) == alone
        stats = engine.stats().draft
    assert 0 <= stats.accepted < stats.proposed


async def test_a_model_agrees_with_itself(tiny_model, lanes):
    async with engine_on(tiny_model, lanes) as engine:
        alone = await answers(engine)
    async with engine_on(tiny_model, lanes, draft=tiny_model) as engine:
        assert await answers(engine) == alone
        stats = engine.stats().draft
    assert stats.accepted == stats.proposed > 0


@pytest.mark.parametrize(
    "sampling",
    [
        replace(GREEDY, repetition_penalty=1.3, presence_penalty=0.5),
        replace(GREEDY, logit_bias={40: 5.0}, frequency_penalty=0.4),
        replace(GREEDY, stop=("e",)),
        replace(GREEDY, max_tokens=1),
        replace(GREEDY, max_tokens=2),
    ],
    ids=str,
)
async def test_every_parameter_holds(tiny_model, draft_model, lanes, sampling):
    async with engine_on(tiny_model, lanes) as engine:
        alone = await answers(engine, sampling)
    async with engine_on(tiny_model, lanes, draft=draft_model) as engine:
        assert await answers(engine, sampling) == alone


@pytest.fixture(scope="module")
def padded_model(draft_model, tmp_path_factory):
    """The draft model with 1,000 ids more than its tokenizer has tokens."""
    path = shutil.copytree(draft_model, tmp_path_factory.mktemp("padded") / "padded")
    config = json.loads((path / "config.json").read_text())
    size = config["vocab_size"]
    (path / "config.json").write_text(json.dumps(config | {"vocab_size": size + 1000}))
    weights = mx.load(str(draft_model / "model.safetensors"))
    padded = {
        name: mx.pad(each, [(0, 1000), (0, 0)]) if each.shape[0] == size else each for name, each in weights.items()
    }
    mx.save_safetensors(str(path / "model.safetensors"), padded, metadata={"format": "mlx"})
    return path


@pytest.mark.parametrize(
    "sampling",
    [
        replace(GREEDY, logit_bias={3000: 50.0}, repetition_penalty=1.3),
        SamplingParams(max_tokens=8, temperature=1e-6, top_k=3000),
    ],
    ids=["logit_bias", "top_k"],
)
async def test_a_draft_may_lack_ids_that_its_model_has(padded_model, draft_model, lanes, sampling):
    prompt = Request("odd", (5, 6, 3000, 2048, 7), sampling)
    async with engine_on(padded_model, lanes) as engine:
        alone = [*await answers(engine, sampling), await text_of(engine, prompt)]
    async with engine_on(padded_model, lanes, draft=draft_model) as engine:
        helped = [*await answers(engine, sampling), await text_of(engine, prompt)]
    assert helped == alone


async def test_a_seed_gives_the_same_answer_whoever_else_is_served(tiny_model, draft_model, lanes):
    sampling = SamplingParams(max_tokens=24, temperature=1.0, seed=3)
    async with engine_on(tiny_model, lanes, draft=draft_model) as engine:
        alone = [await answer(engine, prompt, sampling) for prompt in PROMPTS]
        assert await answers(engine, sampling) == alone


async def test_a_prompt_asked_again_is_not_processed_again(tiny_model, draft_model, lanes):
    async with engine_on(tiny_model, lanes, draft=draft_model, prefix_cache_bytes=2**28) as engine:
        first = chat(engine, "the same words " * 30)
        cold = await collect(engine, first)
        warm = await collect(engine, replace(first, id="again"))
    assert warm[-1].usage.cached_tokens == len(first.prompt) - 1
    assert "".join(o.text for o in warm) == "".join(o.text for o in cold)


async def test_rows_that_are_given_up_leave_nothing(tiny_model, draft_model, lanes):
    freed = []
    options = {"draft": draft_model, "context_length": 4096, "prefill_chunk": 64, "on_freed": freed.append}
    async with engine_on(tiny_model, lanes, **options) as engine:
        before = await answer(engine, "hello")
        decoding = Request("decoding", (5, 6, 7), replace(GREEDY, max_tokens=2000))
        prefilling = Request("prefilling", tuple(range(3, 1503)), GREEDY)
        async with engine.generate(decoding) as outputs, engine.generate(prefilling):
            await anext(outputs)
            await until_state(engine, "prefilling", "prefilling")
            assert engine.cancel("decoding")
            last = [output async for output in outputs][-1]
        await until_idle(engine)
        assert (last.finish_reason, last.cancelled) == (FinishReason.STOP, True)
        assert engine.stats().kv_bytes == 0
        assert len(freed) == 2
        assert await answer(engine, "hello") == before


async def load_failure(lanes, path, draft):
    engine = EngineCore(EngineConfig("it", path, 1000, draft=draft), lanes)
    with pytest.raises(LoadError) as failure:
        await engine.load()
    return failure.value


async def test_a_draft_with_another_vocabulary_is_refused_at_load(tiny_model, micro_model, lanes):
    failure = await load_failure(lanes, tiny_model, micro_model)
    assert failure.reason is LoadFailure.UNSUPPORTED
    assert "another vocabulary" in str(failure)


async def test_a_model_whose_cache_cannot_be_cut_back_is_refused_at_load(lanes):
    hybrid = kind_model("hybrid", HYBRID)
    failure = await load_failure(lanes, hybrid, hybrid)
    assert failure.reason is LoadFailure.UNSUPPORTED
    assert "cut back" in str(failure)


async def test_a_draft_that_is_not_there_is_a_failed_load(tiny_model, tmp_path, lanes):
    failure = await load_failure(lanes, tiny_model, tmp_path / "nothing")
    assert failure.reason is LoadFailure.NOT_FOUND
