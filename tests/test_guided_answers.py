"""Real engines whose answers keep to a form."""

import asyncio
import json
from functools import partial

import pytest
from engine_harness import chat, collect, engine_on, lane_pool, until_idle
from guides import GRAMMAR, PERSON, REGEX, is_person, schema
from tiny_models import ANSWER_MARKERS, TOOL_TEMPLATE, build_reciting_model, cached

from mlxd.engines.errors import GuideError
from mlxd.engines.guidance import check_guide
from mlxd.engines.guide_tools import guide_for_tools
from mlxd.engines.types import ChatFormat, FinishReason, Guide, Request, SamplingParams

# So bounded that random weights come to an end.
BOUNDED_WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 10},
                "days": {"type": "integer", "minimum": 0, "maximum": 9},
            },
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
WAIT = {"type": "function", "function": {"name": "wait", "parameters": NOTHING}}


def guided(seed: int, guide: Guide, **options) -> SamplingParams:
    return SamplingParams(max_tokens=400, temperature=1.0, seed=seed, guide=guide, **options)


async def test_fifty_of_fifty_random_answers_keep_to_their_schema_among_free_ones(tiny_model):
    async with lane_pool() as lanes, engine_on(tiny_model, lanes) as engine:
        await asyncio.to_thread(check_guide, engine.tokenizer, schema(PERSON))
        free = [SamplingParams(max_tokens=40, temperature=1.0, seed=seed) for seed in range(2)]
        alone = [await collect(engine, chat(engine, f"free {n}", sampling)) for n, sampling in enumerate(free)]
        for first in range(0, 50, 10):
            rows = [chat(engine, f"person {seed}", guided(seed, schema(PERSON))) for seed in range(first, first + 10)]
            rows += [chat(engine, f"free {n}", sampling) for n, sampling in enumerate(free)]
            answers = await asyncio.gather(*(collect(engine, row) for row in rows))
            for answer in answers[:10]:
                assert answer[-1].finish_reason is FinishReason.STOP
                assert is_person(json.loads("".join(output.text for output in answer)))
            for answer, own in zip(answers[10:], alone, strict=True):
                assert "".join(o.text for o in answer) == "".join(o.text for o in own)


@pytest.mark.parametrize(
    ("guide", "matches"),
    [
        (Guide(REGEX, "(yes|no), [0-9]{3}"), lambda text: text[:-3] in ("yes, ", "no, ") and text[-3:].isdigit()),
        (Guide(GRAMMAR, 'start: "<" b ">"\nb: "x" | "[" b "]"'), lambda text: text.strip("<[]>") == "x"),
        (
            schema({"type": "array", "items": {"type": "boolean"}, "minItems": 3, "maxItems": 3}),
            lambda text: len(json.loads(text)) == 3,
        ),
    ],
)
async def test_every_kind_of_guide_is_kept_to(tiny_model, guide, matches):
    async with lane_pool() as lanes, engine_on(tiny_model, lanes) as engine:
        rows = [chat(engine, "go", guided(seed, guide)) for seed in range(6)]
        rows.append(chat(engine, "go", SamplingParams(max_tokens=400, temperature=0, guide=guide)))
        for answer in await asyncio.gather(*(collect(engine, row) for row in rows)):
            text = "".join(output.text for output in answer)
            assert matches(text), text
            assert answer[-1].finish_reason is FinishReason.STOP


async def test_a_guide_outlasts_min_tokens_and_other_parameters(tiny_model):
    everything = {
        "min_tokens": 20,
        "logit_bias": {2: 100.0, 5: 100.0},
        "repetition_penalty": 1.3,
        "presence_penalty": 1.0,
        "frequency_penalty": 1.0,
        "top_p": 0.5,
        "top_k": 3,
        "min_p": 0.1,
        "xtc_probability": 1.0,
    }
    async with lane_pool() as lanes, engine_on(tiny_model, lanes) as engine:
        row = chat(engine, "go", guided(1, schema({"const": "a long constant of many words"}), **everything))
        answer = await collect(engine, row)
        assert "".join(output.text for output in answer) == '"a long constant of many words"'
        assert answer[-1].finish_reason is FinishReason.STOP


async def test_a_guided_row_that_ignores_its_end_goes_on_without_text(tiny_model):
    async with lane_pool() as lanes, engine_on(tiny_model, lanes) as engine:
        sampling = SamplingParams(max_tokens=60, guide=schema({"const": "yes"}), ignore_eos=True)
        answer = await collect(engine, chat(engine, "go", sampling))
        assert "".join(output.text for output in answer) == '"yes"'
        assert answer[-1].finish_reason is FinishReason.LENGTH
        assert answer[-1].usage.completion_tokens == 60


async def test_a_guide_is_kept_to_when_a_draft_model_proposes_tokens(tiny_model, other_tiny_model):
    async with lane_pool() as lanes, engine_on(tiny_model, lanes, draft=other_tiny_model) as engine:
        rows = [chat(engine, "person", guided(seed, schema(PERSON))) for seed in range(4)]
        for answer in await asyncio.gather(*(collect(engine, row) for row in rows)):
            assert is_person(json.loads("".join(output.text for output in answer)))
            assert answer[-1].finish_reason is FinishReason.STOP


@pytest.mark.parametrize("with_draft", [False, True])
async def test_a_guide_that_fails_while_it_runs_fails_its_row_alone(
    tiny_model, other_tiny_model, monkeypatch, with_draft
):
    monkeypatch.setattr("mlxd.engines.guide_processor.FREE_SECONDS", -1.0)
    free = SamplingParams(max_tokens=20, temperature=0)
    options = {"draft": other_tiny_model} if with_draft else {}
    async with lane_pool() as lanes, engine_on(tiny_model, lanes, **options) as engine:
        alone = await collect(engine, chat(engine, "free", free))
        rows = [chat(engine, "free", free), chat(engine, "person", guided(1, schema(PERSON)))]
        answer, failure = await asyncio.gather(*(collect(engine, row) for row in rows), return_exceptions=True)
        assert isinstance(failure, GuideError)
        assert "too long" in str(failure)
        assert "".join(o.text for o in answer) == "".join(o.text for o in alone)
        assert await collect(engine, chat(engine, "free", free))
        await until_idle(engine)


@pytest.fixture(scope="module")
def tool_model():
    """A model that would say something else, with a template and tokens for reasoning and calls."""
    build = partial(build_reciting_model, pieces=["No", ", ", "never"], template=TOOL_TEMPLATE, added=ANSWER_MARKERS)
    return cached("guided-tools", build)


@pytest.mark.parametrize("name", [None, "get_weather"])
async def test_a_model_that_must_call_a_tool_calls_it(tool_model, name):
    tools = [BOUNDED_WEATHER, WAIT]
    async with lane_pool() as lanes, engine_on(tool_model, lanes) as engine:
        guide = guide_for_tools(engine.tokenizer, tools, name)
        check_guide(engine.tokenizer, guide)
        prompt = engine.tokenizer.encode_chat([{"role": "user", "content": "Go"}], {"enable_thinking": True}, tools)
        prompt += engine.tokenizer.encode("\n</think>\n\n")
        rows = [
            Request(f"tool {seed}", tuple(prompt), guided(seed, guide), chat=ChatFormat(tuple(tools), max_calls=1))
            for seed in range(6)
        ]
        for answer in await asyncio.gather(*(collect(engine, row) for row in rows)):
            (call,) = (call for output in answer for call in output.tool_calls)
            assert call.name in ("get_weather", "wait")
            assert name in (None, call.name)
            assert isinstance(json.loads(call.arguments), dict)
            assert "".join(output.text for output in answer) == ""


async def test_a_model_that_thinks_answers_in_form_after_its_thoughts(tmp_path):
    pieces = ["Well", ", so", "</think>", "and", " more"]
    model = build_reciting_model(tmp_path / "thinker", pieces, template=TOOL_TEMPLATE, added=ANSWER_MARKERS)
    async with lane_pool() as lanes, engine_on(model, lanes) as engine:
        prompt = engine.tokenizer.encode_chat([{"role": "user", "content": "Go"}], {"enable_thinking": True})
        guide = schema({"const": {"answer": "yes"}})
        outputs = await collect(engine, Request("r", tuple(prompt), guided(1, guide), chat=ChatFormat()))
        assert "".join(output.reasoning for output in outputs) == "Well, so"
        assert "".join(output.text for output in outputs) == '{"answer":"yes"}'
        assert outputs[-1].finish_reason is FinishReason.STOP
