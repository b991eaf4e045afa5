"""The OpenAI calls over the real registry and a real engine."""

import asyncio
from contextlib import asynccontextmanager

import openai
import pytest
from api_fakes import listening, post
from engine_harness import until_idle
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from mlxd.daemon.app import Daemon
from mlxd.daemon.settings import (
    ModelSettings,
    ModelsSettings,
    PresetSettings,
    SamplingSettings,
    ServerSettings,
    Settings,
)
from mlxd.memory.probe import SystemProbe

COLD = PresetSettings("tiny-cold", SamplingSettings(temperature=0.0, max_tokens=12))
HELLO = [{"role": "user", "content": "hello"}]


class Running:
    def __init__(self, daemon, port):
        self.daemon = daemon
        self.port = port
        self.client = openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="x", max_retries=0)

    async def chat(self, **fields):
        return await self.client.chat.completions.create(**{"model": "tiny-cold", "messages": HELLO, **fields})


@asynccontextmanager
async def running(folder, **options):
    settings = Settings(
        models=ModelsSettings(dirs=(folder,), **options),
        model=(ModelSettings("tiny", aliases=("gpt-4o",), presets=(COLD,)),),
        server=ServerSettings(keepalive_interval=0.05, drain_timeout=5),
    )
    daemon = Daemon(settings, SystemProbe(), hf_cache=None)
    daemon.start()
    async with listening(daemon.application()) as port:
        served = Running(daemon, port)
        try:
            async with served.client:
                yield served
        finally:
            assert await daemon.close()


@pytest.fixture
async def served(models_dir, tiny_model):
    async with running(models_dir({"tiny": tiny_model})) as served:
        yield served


def engine_of(served):
    return served.daemon.registry.engines()["tiny"]


async def test_whole_and_streamed_answers_are_the_same_text(served):
    whole = await served.chat()
    ChatCompletion.model_validate(whole.model_dump(), strict=True)
    stream = await served.chat(stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in stream]
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk.model_dump(), strict=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert text == whole.choices[0].message.content
    assert text
    assert whole.choices[0].finish_reason == chunks[-2].choices[0].finish_reason == "length"
    assert whole.usage == chunks[-1].usage
    assert whole.usage.completion_tokens == 12
    assert whole.mlxd["load_s"] > 0
    assert chunks[-1].mlxd["load_s"] == 0


async def test_a_completion_goes_on_from_text_and_from_tokens(served):
    answers = [
        await served.client.completions.create(model="tiny-cold", prompt=prompt, max_tokens=6)
        for prompt in ("import os", ["import os"])
    ]
    tokens = engine_of(served).tokenizer.encode("import os")
    answers.append(await served.client.completions.create(model="tiny-cold", prompt=tokens, max_tokens=6))
    Completion.model_validate(answers[0].model_dump(), strict=True)
    assert len({answer.choices[0].text for answer in answers}) == 1
    assert answers[0].usage.prompt_tokens == len(tokens)


@pytest.mark.parametrize("seed", [0, -1, 2**64 - 1, -(2**63)])
async def test_a_seed_of_64_bits_gives_the_same_text_again(served, seed):
    texts = {(await served.chat(temperature=1.5, seed=seed)).choices[0].message.content for _ in range(2)}
    assert len(texts) == 1


async def test_extreme_sampling_values_give_an_answer(served):
    for fields in (
        {"temperature": 1e-30},
        {"temperature": 2, "top_p": 1e-300},
        {"temperature": 2, "extra_body": {"top_k": 2**53, "min_p": 1, "repetition_penalty": 10}},
        {"logit_bias": {"0": -100, "2047": 100}, "presence_penalty": -2, "frequency_penalty": 2},
        {"stop": ["\x00"] * 16},
    ):
        assert (await served.chat(**{"temperature": 1, **fields})).usage.completion_tokens > 0


async def test_what_cannot_be_served_is_refused_with_its_field(served):
    for fields, param in (
        ({"logit_bias": {"2048": 1}}, "logit_bias"),
        ({"max_tokens": 40_000}, "messages"),
        ({"messages": [{"role": "user", "content": "x " * 40_000}]}, "messages"),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            await served.chat(**fields)
        assert refused.value.param == param
    with pytest.raises(openai.NotFoundError):
        await served.chat(model="nobody")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_frees_the_slot_and_the_lease(served, stream):
    await served.chat(max_tokens=1)
    body = {"model": "tiny", "messages": HELLO, "max_tokens": 20_000, "stream": stream}
    _, writer = await post(served.port, "/v1/chat/completions", body, X_Request_Id="gone")
    async with asyncio.timeout(10):
        while not engine_of(served).stats().running:
            await asyncio.sleep(0.002)
    writer.transport.abort()
    await until_idle(engine_of(served))
    assert served.daemon.registry.model("tiny").leases == 0
    assert len(served.daemon.services.running) == 0


async def test_a_cancelled_request_keeps_its_text(served):
    await served.chat(max_tokens=1)
    headers = {"X-Request-Id": "stop-me"}
    asking = asyncio.ensure_future(served.chat(max_tokens=20_000, extra_headers=headers))
    async with asyncio.timeout(10):
        while not engine_of(served).stats().completion_tokens > 5:
            await asyncio.sleep(0.002)
    assert served.daemon.services.running.cancel("stop-me")
    answer = await asking
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].message.content
    assert answer.mlxd["cancelled"] is True
    assert answer.usage.completion_tokens < 20_000


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_cancelled_while_its_model_loads_is_an_answer_without_text(served, stream):
    headers = {"X-Request-Id": "stop-me"}
    asking = asyncio.ensure_future(served.chat(stream=stream, extra_headers=headers))
    async with asyncio.timeout(10):
        while not served.daemon.registry.waiting():
            await asyncio.sleep(0.002)
    assert served.daemon.services.running.cancel("stop-me")
    answer = await asking
    final = [chunk async for chunk in answer][-1] if stream else answer
    assert final.choices[0].finish_reason == "stop"
    assert final.mlxd["cancelled"] is True
    assert served.daemon.registry.waiting() == ()
    assert served.daemon.registry.model("tiny").leases == 0
    assert (await served.chat()).usage.completion_tokens == 12


async def test_without_autoload_a_model_that_is_not_loaded_is_a_conflict(models_dir, tiny_model):
    async with running(models_dir({"tiny": tiny_model}), autoload=False) as served:
        with pytest.raises(openai.ConflictError) as refused:
            await served.chat()
        assert refused.value.code == "model_not_loaded"


async def test_a_client_that_waits_for_nothing_is_served_by_a_ready_model_only(served):
    now = {"X-Mlxd-Max-Wait": "0"}
    with pytest.raises(openai.InternalServerError) as refused:
        await served.chat(extra_headers=now)
    assert refused.value.code == "model_wait_timeout"
    await served.chat()
    assert (await served.chat(extra_headers=now)).usage.completion_tokens == 12


async def test_reading_the_models_loads_none(served):
    listed = [model.id async for model in await served.client.models.list()]
    assert listed == ["tiny", "gpt-4o", "tiny-cold"]
    assert served.daemon.registry.model("tiny").state == "unloaded"
