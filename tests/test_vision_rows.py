"""Rows with images on one engine: each has its own parameters, and goes, fails or gives way without a trace."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import mlx.core as mx
import pytest
from engine_harness import engine_on, lane_pool, until_idle
from test_preemption import Tight
from tiny_vision import png, tiny_vision_model
from vision_harness import (
    EXACT,
    PLENTY,
    ask,
    decoded,
    held_step,
    outputs_of,
    request,
    tokens_in,
    user,
    watched_encodings,
)

from mlxd.engines import vision_runner
from mlxd.engines.core import EngineCore
from mlxd.engines.errors import AbortedByOperator, EngineClosed, StepFailed
from mlxd.engines.image_files import image_digest
from mlxd.engines.types import FinishReason, Guide, GuideKind, Request, RequestOutput, SamplingParams

FIRST, SECOND = png("first", (90, 90)), png("second", (120, 60))
QUESTION = "What is here, and why?"
ABORTED = AbortedByOperator(0, 0, "operator")
LONG_TEXT = "Tell me more of it, and of what is behind it. " * 13


@pytest.fixture
def model():
    return tiny_vision_model("qwen3_vl")


@pytest.fixture
async def engine(model) -> AsyncIterator[EngineCore]:
    async with lane_pool() as lanes, running(model, lanes) as loaded:
        yield loaded


@asynccontextmanager
async def running(model, lanes, **options) -> AsyncIterator[EngineCore]:
    settings = {"vision": True, "prefill_chunk": 32, "max_stall": None, "context_length": 4096, **options}
    async with engine_on(model, lanes, **settings) as engine:
        yield engine


def text(outputs: list[RequestOutput]) -> str:
    return "".join(output.text for output in outputs)


SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["cat", "dog"]}, "count": {"type": "integer", "maximum": 9, "minimum": 0}},
    "required": ["kind", "count"],
    "additionalProperties": False,
}
SAMPLINGS = {
    "greedy": SamplingParams(temperature=0),
    "seeded": SamplingParams(temperature=1.0, seed=11, top_p=0.9),
    "other seed": SamplingParams(temperature=1.0, seed=12, top_k=40),
    "biased": SamplingParams(temperature=0, logit_bias={17: 50.0}),
    "penalties": SamplingParams(temperature=0, repetition_penalty=1.5, presence_penalty=1.0, frequency_penalty=0.5),
    "stopped": SamplingParams(temperature=1.0, seed=3, stop=("e", "a"), min_tokens=4),
    "logprobs": SamplingParams(temperature=0.7, seed=5, logprobs=3),
    "guided": SamplingParams(temperature=1.0, seed=9, guide=Guide(GuideKind.JSON_SCHEMA, json.dumps(SCHEMA))),
}


@pytest.mark.parametrize("budget", [0, PLENTY])
async def test_each_row_of_a_batch_with_images_is_sampled_by_its_own_parameters(model, budget):
    chats = [[user(FIRST, QUESTION)], [user("Some text.")], [user("Of", SECOND, "and", FIRST, "which?")]]
    async with lane_pool() as lanes, running(model, lanes, prefix_cache_bytes=budget) as engine:
        samplings = [replace(sampling, max_tokens=24) for sampling in SAMPLINGS.values()]
        requests = [request(engine, *chats[number % 3], sampling=sampling) for number, sampling in enumerate(samplings)]
        alone = [await outputs_of(engine, one) for one in requests]
        together = await asyncio.gather(*[outputs_of(engine, one) for one in requests])
    assert [text(outputs) for outputs in together] == [text(outputs) for outputs in alone]
    assert [outputs[-1].finish_reason for outputs in together] == [outputs[-1].finish_reason for outputs in alone]
    assert [tokens_in(outputs) for outputs in together] == [tokens_in(outputs) for outputs in alone]
    answers = dict(zip(SAMPLINGS, together, strict=True))
    assert SCHEMA["properties"].keys() == json.loads(text(answers["guided"])).keys()
    assert answers["stopped"][-1].finish_reason is FinishReason.STOP
    assert not {"e", "a"} & set(text(answers["stopped"])[-1:])
    assert {one.token for output in answers["logprobs"] for one in output.logprobs}
    assert len({text(outputs) for outputs in together}) == len(SAMPLINGS)


async def rest(stream: AsyncIterator[RequestOutput]) -> list[RequestOutput]:
    return [output async for output in stream]


async def give_up(engine: EngineCore, asked: Request, how: str, began: threading.Event, go_on: threading.Event) -> None:
    """Give a request up before its first token, once it has `began` with what lasts until `go_on`."""
    async with engine.generate(asked) as outputs:
        assert await asyncio.to_thread(began.wait, 20)
        if how == "cancel":
            assert engine.cancel(asked.id)
            go_on.set()
            (last,) = await rest(outputs)
            assert (last.cancelled, last.usage.completion_tokens) == (True, 0)
        elif how == "abort all":
            assert engine.abort_all(ABORTED) == 1
            go_on.set()
            with pytest.raises(AbortedByOperator):
                await rest(outputs)
    go_on.set()


async def left(engine: EngineCore) -> int:
    """The bytes that MLX holds once nothing is live or kept, which the engine's books say too."""
    await until_idle(engine)
    await engine.trim_prefix_cache(0)
    assert (engine.stats().kv_bytes, engine.stats().promised_bytes) == (0, 0)
    assert engine.requests() == ()
    return mx.get_active_memory()


@pytest.mark.parametrize("how", ["leave", "cancel", "abort all"])
async def test_a_request_may_end_while_its_image_is_encoded(engine, monkeypatch, how):
    monkeypatch.setattr(vision_runner, "STRETCH", 0.0)  # a block of the encoder in each step
    wanted = await ask(engine, user(FIRST, QUESTION))
    before = await left(engine)
    with watched_encodings() as encodings:
        encodings.held.clear()
        asked = request(engine, user(FIRST, SECOND, QUESTION))
        await give_up(engine, asked, how, encodings.waits, encodings.held)
        assert await left(engine) <= before + 4096
        # neither was it encoded to the end, nor is the other one begun
        assert len(encodings) == 1
        assert await ask(engine, user(FIRST, QUESTION)) == wanted
        assert len(encodings) == 2


@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize("how", ["leave", "cancel", "abort all"])
async def test_a_request_with_an_image_may_end_in_its_prefill(engine, how, step):
    wanted = await ask(engine, user(FIRST, QUESTION))
    before = await left(engine)
    with held_step(step) as (began, may_go_on):
        asked = request(engine, user(FIRST, LONG_TEXT, SECOND))
        assert len(asked.prompt) > 4 * engine.config.prefill_chunk
        await give_up(engine, asked, how, began, may_go_on)
    assert await left(engine) <= before + 4096
    assert await ask(engine, user(FIRST, QUESTION)) == wanted


@pytest.mark.parametrize("how", ["leave", "cancel", "abort all"])
async def test_a_request_with_an_image_may_end_in_its_answer(engine, how):
    wanted = await ask(engine, user(FIRST, QUESTION))
    before = await left(engine)
    asked = request(engine, user(FIRST, QUESTION), sampling=replace(EXACT, max_tokens=1000))
    outputs = []
    async with engine.generate(asked) as stream:
        outputs.append(await anext(stream))
        if how == "cancel":
            assert engine.cancel(asked.id)
            outputs += await rest(stream)
            assert outputs[-1].cancelled
        elif how == "abort all":
            assert engine.abort_all(ABORTED) == 1
            with pytest.raises(AbortedByOperator):
                await rest(stream)
    assert tokens_in(outputs)[: len(wanted)] == wanted[: len(tokens_in(outputs))]
    assert await left(engine) <= before + 4096
    assert await ask(engine, user(FIRST, QUESTION)) == wanted


async def test_others_decode_while_an_image_is_encoded_in_stretches(engine, monkeypatch):
    monkeypatch.setattr(vision_runner, "STRETCH", 0.0)
    alone = [await ask(engine, user("Some text."), sampling=replace(EXACT, max_tokens=30))]
    alone.append(await ask(engine, user(FIRST, SECOND, QUESTION)))
    with watched_encodings() as encodings:
        text_request = request(engine, user("Some text."), sampling=replace(EXACT, max_tokens=30))
        async with engine.generate(text_request) as stream:
            pieces = [await anext(stream)]
            image = asyncio.ensure_future(ask(engine, user(FIRST, SECOND, QUESTION)))
            pieces += await rest(stream)
        assert [tokens_in(pieces), await image] == alone
        assert len(encodings) == 2


async def test_an_encoder_that_fails_ends_its_own_request_alone(engine):
    chats = [[user(FIRST, QUESTION)], [user("Some text.")], [user(SECOND, QUESTION)], [user(SECOND, FIRST, QUESTION)]]
    alone = [await ask(engine, *chat) for chat in chats]
    before = await left(engine)
    requests = [request(engine, *chat) for chat in chats]
    with watched_encodings() as encodings:
        encodings.broken.add(image_digest(decoded(FIRST)))
        answers = await asyncio.gather(*[outputs_of(engine, one) for one in requests], return_exceptions=True)
        for number in (0, 3):
            assert isinstance(answers[number], StepFailed)
            assert "no memory for this image" in str(answers[number])
        assert [tokens_in(answers[number]) for number in (1, 2)] == [alone[1], alone[2]]
        assert await left(engine) <= before + 4096
        encodings.broken.clear()
        assert [await ask(engine, *chat) for chat in chats] == alone


async def test_a_row_with_images_that_gave_way_goes_on_as_if_nothing_had_happened(model):
    # past the end of two steps of a growing buffer, which the prompts nearly fill
    sampling = replace(EXACT, max_tokens=80)
    tight = Tight()
    options = {"memory": tight.share().stake("m"), "prefill_eviction_callback": tight.make_room}
    async with lane_pool() as lanes, running(model, lanes, prefill_chunk=512, **options) as engine:
        tight.engine = engine
        chats = [[user(LONG_TEXT * 2)], [user(LONG_TEXT * 2, "Of", SECOND, "and", FIRST, "which?")]]
        requests = [request(engine, *chat, sampling=sampling) for chat in chats]
        assert all(440 < len(one.prompt) < 512 for one in requests)
        free = await asyncio.gather(*[outputs_of(engine, one) for one in requests])
        assert engine.stats().preempted == 0
        tight.rows = 1
        with watched_encodings() as encodings:
            tightly = await asyncio.gather(*[outputs_of(engine, one) for one in requests])
            # once more for the row that gave way: nothing is kept here
            assert len(encodings) == 4
        assert engine.stats().preempted >= 1
    assert [tokens_in(outputs) for outputs in tightly] == [tokens_in(outputs) for outputs in free]
    assert [outputs[-1].usage for outputs in tightly] == [outputs[-1].usage for outputs in free]


async def test_closing_an_engine_ends_what_it_encodes(model, monkeypatch):
    monkeypatch.setattr(vision_runner, "STRETCH", 0.0)
    with watched_encodings() as encodings:
        async with lane_pool() as lanes, running(model, lanes) as engine:
            encodings.begun.clear()
            encodings.held.clear()
            async with engine.generate(request(engine, user(FIRST, SECOND, QUESTION))) as outputs:
                await encodings.until_held()
                closing = asyncio.create_task(engine.close(EngineClosed("over"), 20))
                # behind the task's first step, which asks the engine to close
                asyncio.get_running_loop().call_soon(encodings.held.set)
                with pytest.raises(EngineClosed, match="over"):
                    await rest(outputs)
            assert await closing
            assert len(encodings) == 1
