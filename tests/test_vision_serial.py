"""Vision models whose rows cannot be batched: requests take turns, and answer as mlx-vlm's own `generate` does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from engine_harness import engine_on, lane_pool, until_idle, until_live
from serial_vision import CHATS, FAMILIES, FIRST, OPTIONS, SAMPLINGS, Rendered, chats_of, none_batched
from tiny_vision import SINGLE_IMAGE, tiny_vision_model
from vision_harness import EXACT, ask, outputs_of, request, tokens_in, user

from mlxd.engines.core import EngineCore
from mlxd.engines.errors import InvalidRequest
from mlxd.engines.types import Request


@dataclass(frozen=True)
class Asked:
    """An engine, and what mlx-vlm answers to its family's chats."""

    engine: EngineCore
    family: str
    wanted: dict[str, tuple[int, list[int]]]
    image_token: str
    runner: asyncio.Runner

    def run(self, work: Any) -> Any:
        return self.runner.run(work)

    def is_free(self) -> bool:
        stats = self.engine.stats()
        return not (stats.running or stats.waiting or stats.kv_bytes or stats.promised_bytes)


@pytest.fixture(scope="module", params=FAMILIES)
def asked(request: pytest.FixtureRequest) -> Iterator[Asked]:
    family: str = request.param
    path = tiny_vision_model(family, **FAMILIES[family])
    stack = AsyncExitStack()

    async def start() -> EngineCore:
        lanes = await stack.enter_async_context(lane_pool())
        return await stack.enter_async_context(engine_on(path, lanes, **OPTIONS))

    with asyncio.Runner() as runner, none_batched():
        engine = runner.run(start())
        reference = Rendered(path, engine.tokenizer)
        wanted = {name: reference.answer(*chat) for name, chat in chats_of(family).items()}
        token = engine.tokenizer.encode_prompt(CHATS["one image"]).images.token
        yield Asked(engine, family, wanted, reference.processor.tokenizer.convert_ids_to_tokens(token), runner)
        runner.run(stack.aclose())


def test_every_answer_is_mlx_vlms(asked):
    for name, (length, tokens) in asked.wanted.items():
        asked_for = request(asked.engine, *CHATS[name])
        assert len(asked_for.prompt) == length
        assert tokens_in(asked.run(outputs_of(asked.engine, asked_for))) == tokens
    assert asked.is_free()
    assert asked.engine.stats().prefix_cache_bytes == 0


def test_whoever_comes_at_once_gets_what_each_gets_alone(asked):
    async def all_at_once(requests: list[Request]) -> list[list[int]]:
        answers = await asyncio.gather(*[outputs_of(asked.engine, each) for each in requests])
        return [tokens_in(outputs) for outputs in answers]

    requests = [
        request(asked.engine, *chat, sampling=sampling)
        for chat, sampling in zip(chats_of(asked.family).values(), SAMPLINGS.values(), strict=False)
    ]
    alone = [tokens_in(asked.run(outputs_of(asked.engine, each))) for each in requests]
    assert asked.run(all_at_once(requests[::-1])) == alone[::-1]


def test_another_seed_gives_another_answer_and_the_same_one_the_same(asked):
    chat = CHATS["one image"]
    answers = [
        asked.run(ask(asked.engine, *chat, sampling=replace(EXACT, temperature=1.0, seed=seed))) for seed in (1, 2, 1)
    ]
    assert answers[0] == answers[2] != answers[1]


def test_logprobs_are_those_of_the_likeliest_tokens(asked):
    outputs = asked.run(
        outputs_of(asked.engine, request(asked.engine, *CHATS["one image"], sampling=replace(EXACT, logprobs=3)))
    )
    reported = [one for output in outputs for one in output.logprobs]
    assert [one.token for one in reported] == asked.wanted["one image"][1]
    assert all(len(one.top) == 3 and one.top[0] == (one.token, one.logprob) for one in reported)


@pytest.mark.parametrize("how", ["cancel", "leave"])
def test_a_request_can_end_while_it_waits_for_its_turn_and_while_it_answers(asked, how):
    engine = asked.engine

    async def give_up() -> None:
        first, second = (request(engine, *CHATS["one image"], sampling=replace(EXACT, max_tokens=500)) for _ in "ab")
        async with engine.generate(first) as answered:
            await anext(answered)
            async with engine.generate(second) as waiting:
                await until_live(engine, 2)
                if how == "cancel":
                    assert engine.cancel(second.id)
                    (last,) = [output async for output in waiting]
                    assert last.cancelled
                    assert not last.usage.completion_tokens
            if how == "cancel":
                assert engine.cancel(first.id)
                last = [output async for output in answered][-1]
                assert last.cancelled
                assert last.usage.completion_tokens < 500
        await until_idle(engine)

    asked.run(give_up())
    assert asked.is_free()
    assert asked.run(ask(engine, *CHATS["one image"])) == asked.wanted["one image"][1]


def test_a_text_that_holds_an_image_token_is_refused(asked):
    with pytest.raises(InvalidRequest):
        asked.engine.tokenizer.encode_prompt([user(FIRST, f"What is {asked.image_token} here?")])


def test_a_second_image_is_refused_where_the_family_takes_one(asked):
    if asked.family not in SINGLE_IMAGE:
        images = asked.engine.tokenizer.encode_prompt(CHATS["two images"]).images
        assert len({image.digest for image in images.images}) == 2
        assert images.tokens == np.count_nonzero(images.inputs["input_ids"] == images.token)
        return
    with pytest.raises(InvalidRequest) as refusal:
        asked.engine.tokenizer.encode_prompt(CHATS["two images"])
    assert refusal.value.param == "messages[0].content[1]"
