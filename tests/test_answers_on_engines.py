"""Chat answers of real engines: reasoning and calls beside plain rows of one batch."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import reduce
from itertools import count
from pathlib import Path

import pytest
from answer_models import TOOLS
from engine_harness import GREEDY, collect, engine_on, lane_pool
from msgspec import structs
from tiny_models import ANSWER_MARKERS, TOOL_TEMPLATE, build_reciting_model

from mlxd.engines.core import EngineCore
from mlxd.engines.types import ChatFormat, FinishReason, Request, RequestOutput, SamplingParams, ToolCall

PIECES = [
    "I", " think", ".", "\n", "</think>", "\n\n", "Let me", " see", ".", "\n", "<tool_call>",
    '{"name": "get_weather",', ' "arguments": {"city": "K', "ö".encode()[:1], "ö".encode()[1:], 'ln"', "}}",
    "</tool_call>", "\n", "<tool", "_call>", '{"name": "f", "arguments": {}}</tool_', "call>", "\n",
]  # fmt: skip
RAW = b"".join(piece if isinstance(piece, bytes) else piece.encode() for piece in PIECES).decode()
CALLS = (ToolCall("get_weather", '{"city":"Köln"}'), ToolCall("f", "{}"))
_ids = count(1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "thinker"
    return build_reciting_model(folder, PIECES, template=TOOL_TEMPLATE, added=ANSWER_MARKERS)


def asks(engine: EngineCore, chat: ChatFormat | None, thinks: bool = True) -> Request:
    tools = chat.tools if chat is not None else ()
    prompt = engine.tokenizer.encode_chat([{"role": "user", "content": "Hi"}], {"enable_thinking": thinks}, tools)
    return Request(f"r{next(_ids)}", tuple(prompt), replace(GREEDY, max_tokens=80), chat=chat)


def merged(outputs: list[RequestOutput]) -> RequestOutput:
    def merge(first: RequestOutput, second: RequestOutput) -> RequestOutput:
        return structs.replace(
            second,
            text=first.text + second.text,
            reasoning=first.reasoning + second.reasoning,
            tool_calls=first.tool_calls + second.tool_calls,
        )

    return reduce(merge, outputs)


async def test_reasoning_and_calls_are_told_from_text_in_a_batch_with_a_plain_row(model: Path):
    async with lane_pool() as lanes, engine_on(model, lanes) as engine:
        assert engine.tokenizer.has_tools
        assert engine.tokenizer.has_reasoning
        chats = [asks(engine, ChatFormat(TOOLS)), asks(engine, None), asks(engine, ChatFormat())]
        full, plain, no_tools = [merged(o) for o in await asyncio.gather(*(collect(engine, chat) for chat in chats))]
    assert (full.text, full.reasoning, full.tool_calls) == ("Let me see.\n", "I think.", CALLS)
    assert (plain.text, plain.reasoning, plain.tool_calls) == (RAW, "", ())
    assert (no_tools.reasoning, no_tools.tool_calls) == ("I think.", ())
    assert no_tools.text == RAW.partition("</think>\n\n")[2]
    assert {output.finish_reason for output in (full, plain, no_tools)} == {FinishReason.STOP}
    assert len({output.usage.completion_tokens for output in (full, plain, no_tools)}) == 1


async def test_the_last_call_that_is_allowed_ends_the_answer(model: Path):
    async with lane_pool() as lanes, engine_on(model, lanes) as engine:
        answer = merged(await collect(engine, asks(engine, ChatFormat(TOOLS, max_calls=1))))
    assert answer.tool_calls == CALLS[:1]
    assert answer.finish_reason is FinishReason.STOP
    assert answer.usage.completion_tokens == PIECES.index("</tool_call>") + 1


async def test_a_thought_that_the_prompt_did_not_open_is_text(model: Path):
    async with lane_pool() as lanes, engine_on(model, lanes) as engine:
        answer = merged(await collect(engine, asks(engine, ChatFormat(), thinks=False)))
    assert (answer.text, answer.reasoning) == (RAW, "")


@pytest.mark.parametrize(
    ("limit", "reasoning", "text", "calls"),
    [
        (3, "I think.", "", 0),
        (8, "I think.", "Let me see", 0),
        (14, "I think.", 'Let me see.\n<tool_call>{"name": "get_weather", "arguments": {"city": "K\ufffd', 0),
        (20, "I think.", "Let me see.\n\n<tool", 1),
        (21, "I think.", "Let me see.\n\n<tool_call>", 1),
        (23, "I think.", "Let me see.\n", 2),
    ],
)
async def test_an_answer_that_its_length_cuts_off_loses_nothing(
    model: Path, limit: int, reasoning: str, text: str, calls: int
):
    async with lane_pool() as lanes, engine_on(model, lanes) as engine:
        request = asks(engine, ChatFormat(TOOLS))
        request = replace(request, sampling=SamplingParams(max_tokens=limit, temperature=0))
        answer = merged(await collect(engine, request))
    assert (answer.reasoning, answer.text, answer.tool_calls) == (reasoning, text, CALLS[:calls])
    assert answer.finish_reason is FinishReason.LENGTH


async def test_a_cancelled_answer_keeps_what_was_held_back(model: Path, tmp_path: Path):
    looping = build_reciting_model(
        tmp_path / "loop", ["</think>", "a", "<tool_call>", *"xyz" * 20], loop=False, template=TOOL_TEMPLATE,
        added=ANSWER_MARKERS,
    )  # fmt: skip
    async with lane_pool() as lanes, engine_on(looping, lanes) as engine:
        request = asks(engine, ChatFormat(TOOLS))
        async with engine.generate(request) as outputs:
            answers = []
            async for output in outputs:
                answers.append(output)
                engine.cancel(request.id)
    answer = merged(answers)
    assert answer.cancelled
    assert answer.text.startswith("a")
    assert f"a<tool_call>{'xyz' * 20}".startswith(answer.text)
