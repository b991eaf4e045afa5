"""Errors before and after the first byte, and what a stream says while it waits."""

import asyncio

import openai
import pytest
from api_calls import CHAT, QUICK, ask, client_of, hello, refusal
from api_fakes import HELLO, answer_head, events, last, piece, post, serving

from mlxd.engines import errors as engine_errors
from mlxd.engines.types import LoadProgress
from mlxd.registry import errors as registry_errors
from mlxd.registry.snapshot import LoadStatus

BEFORE = [
    (registry_errors.ModelNotLoaded("m"), 409, "model_not_loaded"),
    (registry_errors.ResidencyQueueFull(1, 4.2), 429, "queue_full"),
    (registry_errors.ModelTooLarge("m", 9, 5, "cgroup"), 507, "model_too_large"),
    (registry_errors.ShuttingDown(), 503, "shutting_down"),
    (KeyError("odd"), 500, "internal_error"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("error", "status", "code"), BEFORE)
async def test_an_error_of_the_registry_is_an_http_error_streamed_or_not(error, status, code, stream):
    async with serving() as served:
        served.registry.refusal = error
        seen, shown = await refusal(served, hello(stream=stream))
        assert (seen, shown["code"]) == (status, code)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_of_the_engine_before_the_first_token_is_an_http_error(stream):
    async with serving() as served:
        served.engine.refusal = engine_errors.EngineQueueFull(1, 1)
        assert (await refusal(served, hello(stream=stream)))[0] == 429
        served.engine.refusal = None
        late = engine_errors.PrefillMemoryExceeded("r", 9, 5)
        status, error = await refusal(served, hello(stream=stream), CHAT, late)
        assert (status, error["code"]) == (507, "prefill_memory_exceeded")
        status, error = await refusal(served, hello(stream=stream), CHAT, engine_errors.StepFailed("secret"))
        assert (status, error["code"]) == (500, "internal_error")
        assert "secret" not in error["message"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (engine_errors.FootprintExceeded(9, 5, "auto"), "memory_ceiling"),
        (registry_errors.ModelUnloaded("m"), "model_unloaded"),
        (ZeroDivisionError("secret"), "internal_error"),
    ],
)
async def test_an_error_after_the_first_byte_is_the_streams_last_event(error, code):
    async with serving() as served:
        status, text = await ask(served, hello(stream=True), CHAT, piece("Hel"), error)
    seen = events(text)
    assert status == 200
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in seen[:-1]) == "Hel"
    assert seen[-1]["error"]["code"] == code
    assert "[DONE]" not in text
    assert "secret" not in text


async def test_the_openai_client_raises_an_error_that_comes_in_a_stream():
    async with (
        serving() as served,
        client_of(served) as client,
    ):
        starting = asyncio.ensure_future(client.chat.completions.create(**HELLO, stream=True))
        request = await served.engine.arrivals.get()
        served.engine.put(request, piece("Hel"))
        stream = await starting
        served.engine.put(request, engine_errors.FootprintExceeded(9, 5, "auto"))
        with pytest.raises(openai.APIError, match="footprint"):
            _ = [chunk async for chunk in stream]


async def test_a_stream_that_waits_says_how_far_the_load_is():
    async with serving(server=QUICK) as served:
        served.registry.open.clear()
        reader, writer = await post(served.port, CHAT, hello(stream=True))
        await served.registry.waits.get()
        status, _ = await answer_head(reader)
        assert status == 200
        assert b": waiting\n" in await reader.readuntil(b"waiting\n")
        served.registry.load = LoadStatus(LoadProgress(41, 100), 2.6)
        await reader.readuntil(b": loading 41% eta 3s\n\n")
        served.registry.load = LoadStatus(LoadProgress(0, 0), None)
        await reader.readuntil(b": loading 0%\n\n")
        served.registry.load = None
        served.registry.open.set()
        request = await served.engine.arrivals.get()
        served.engine.put(request, last("done"))
        rest = (await reader.readuntil(b"[DONE]\n\n")).decode()
        assert '"content":"done"' in rest
        writer.close()


async def test_an_error_after_a_heartbeat_is_an_event():
    async with serving(server=QUICK) as served:
        served.registry.open.clear()
        served.registry.refusal = registry_errors.ModelWaitTimeout("m", 1, 1)
        reader, writer = await post(served.port, CHAT, hello(stream=True))
        await reader.readuntil(b": waiting\n\n")
        served.registry.open.set()
        assert b"model_wait_timeout" in await reader.readuntil(b"0\r\n\r\n")
        writer.close()


async def test_without_a_stream_nothing_is_sent_while_it_waits():
    async with serving(server=QUICK) as served:
        served.registry.open.clear()
        asking = asyncio.ensure_future(ask(served, hello()))
        await served.registry.waits.get()
        await asyncio.wait({asking}, timeout=0.05)
        assert not asking.done()
        served.registry.refusal = registry_errors.ModelWaitTimeout("m", 1, 1)
        served.registry.open.set()
        assert (await asking)[0] == 503
