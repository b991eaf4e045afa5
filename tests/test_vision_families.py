"""Every family that is batched answers as mlx-vlm's own `generate` does, token by token, whoever else is there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

import pytest
from engine_harness import engine_on, lane_pool
from tiny_vision import png, tiny_vision_model
from vision_harness import EXACT, PLENTY, Message, Reference, ask_all, outputs_of, request, said, tokens_in, user

from mlxd.engines.core import EngineCore
from mlxd.engines.types import RequestOutput
from mlxd.engines.vision_model import BATCHED

# Prompts are cut within their images.
OPTIONS = {"vision": True, "prefill_chunk": 16, "max_stall": None, "prefix_cache_bytes": PLENTY}
FIRST, SECOND, THIRD = png("first", (60, 80)), png("second", (150, 60)), png("third", (90, 90))
LONGER = "Say it once more, in other words than before, and slowly."
CHATS: dict[str, list[Message]] = {
    "one image": [user(FIRST, "What is here?")],
    "text": [user("What is the capital of France?")],
    "images between texts": [user("Compare", SECOND, "with", THIRD, "and tell me which is larger.")],
    "image in history": [user(FIRST, "What is here?"), said("A tree."), user(LONGER)],
}
# A window that is shorter than the prompts.
WINDOWED = {"text_config": {"sliding_window": 32}}
# MLX compiles some of its steps anew for every shape, which takes long on a CPU.
SLOW = ("kimi_vl",)
MODELS = [pytest.param(name, {}, id=name, marks=[pytest.mark.soak] * (name in SLOW)) for name in sorted(BATCHED)]
MODELS += [pytest.param(name, WINDOWED, id=f"{name}-windowed") for name in ("gemma3",)]


@dataclass(frozen=True)
class Asked:
    """An engine, and what mlx-vlm answers to `CHATS`."""

    engine: EngineCore
    prompts: dict[str, int]
    wanted: dict[str, list[int]]
    runner: asyncio.Runner

    def fresh(self, answer: Any) -> Any:
        """The answer of an engine that has kept nothing."""
        self.runner.run(self.engine.trim_prefix_cache(0))
        return self.runner.run(answer)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    metafunc.parametrize(("family", "overrides"), MODELS, scope="module")


@pytest.fixture(scope="module")
def asked(family: str, overrides: dict[str, Any]) -> Iterator[Asked]:
    path = tiny_vision_model(family, **overrides)
    reference = Reference(path)
    answers = {name: reference.answer(*chat) for name, chat in CHATS.items()}
    prompts, wanted = ({name: answer[part] for name, answer in answers.items()} for part in (0, 1))
    stack = AsyncExitStack()

    async def start() -> EngineCore:
        lanes = await stack.enter_async_context(lane_pool())
        return await stack.enter_async_context(engine_on(path, lanes, **OPTIONS))

    with asyncio.Runner() as runner:
        yield Asked(runner.run(start()), prompts, wanted, runner)
        runner.run(stack.aclose())


def test_prompts_have_the_tokens_that_mlx_vlm_gives_them(asked):
    prompts = {name: len(request(asked.engine, *chat).prompt) for name, chat in CHATS.items()}
    assert prompts == asked.prompts


def test_every_answer_alone_is_mlx_vlms_and_so_is_the_one_from_a_kept_prefix(asked):
    assert len({tuple(tokens) for tokens in asked.wanted.values()}) == len(CHATS)
    for name, chat in CHATS.items():
        first, second = asked.fresh(_twice(asked.engine, chat))
        assert tokens_in(first) == tokens_in(second) == asked.wanted[name]
        cached = [outputs[-1].usage.cached_tokens for outputs in (first, second)]
        assert cached == [0, asked.prompts[name] - 1]


def test_answers_together_are_those_alone_for_images_and_text_of_any_length(asked):
    together = asked.fresh(ask_all(asked.engine, CHATS.values()))
    assert dict(zip(CHATS, together, strict=True)) == asked.wanted


def test_prompts_of_many_lengths_may_prefill_together_and_join_each_other(asked):
    engine = asked.engine
    files, words = (FIRST, SECOND, THIRD), LONGER.split()
    chats = [
        [user(*(files[number % 3],) * (number % 3), " ".join(words[: 1 + number] * (1 + number % 4)))]
        for number in range(7)
    ]
    lengths = [24, *[EXACT.max_tokens] * 6]
    requests = [
        request(engine, *chat, sampling=replace(EXACT, max_tokens=length))
        for chat, length in zip(chats, lengths, strict=True)
    ]
    alone = [asked.fresh(outputs_of(engine, one)) for one in requests]

    async def together() -> list[list[RequestOutput]]:
        async with engine.generate(requests[0]) as first, asyncio.TaskGroup() as group:
            outputs = [await anext(first)]
            tasks = [group.create_task(outputs_of(engine, one)) for one in requests[1:4]]
            outputs.append(await anext(first))
            tasks += [group.create_task(outputs_of(engine, one)) for one in requests[4:]]
            outputs += [output async for output in first]
        return [outputs, *[task.result() for task in tasks]]

    # several prompts share a step, and end in the middle of one
    engine.retune(replace(engine.config.limits, prefill_chunk=48))
    try:
        mixed = asked.fresh(together())
    finally:
        engine.retune(replace(engine.config.limits, prefill_chunk=OPTIONS["prefill_chunk"]))
    assert [tokens_in(outputs) for outputs in mixed] == [tokens_in(outputs) for outputs in alone]


async def _twice(engine: EngineCore, chat: Sequence[Message]) -> list[Any]:
    return [await outputs_of(engine, request(engine, *chat)) for _ in range(2)]
