"""The answers of the Ollama calls over a programmable engine: their shapes, errors, and who leaves."""

import asyncio
import json
from datetime import datetime

import ollama
import pytest
from answer_models import WEATHER
from api_calls import QUICK, ask, within
from api_fakes import answer_head, last, piece, post, serving
from ollama_calls import CHAT, GENERATE, USER, asked_of, chat, client_of, generate, lines, parts_of, sent

from mlxd.engines import errors as engine_errors
from mlxd.engines.types import FinishReason, RequestOutput, TokenLogprobs, ToolCall, Usage
from mlxd.registry import errors as registry_errors

DURATIONS = {"total_duration", "load_duration", "prompt_eval_duration", "eval_duration"}
END = {"done_reason", "prompt_eval_count", "eval_count", "mlxd"} | DURATIONS


def said(output, **fields):
    return RequestOutput(output, Usage(6, 1), **fields)


async def test_a_chat_is_streamed_as_lines_unless_it_is_told_not_to():
    async with serving() as served:
        status, text = await ask(served, chat(), CHAT, piece("Hel"), piece("lo"), last("!"))
    assert status == 200
    *pieces, end = lines(text)
    assert "".join(line["message"]["content"] for line in pieces) == "Hello!"
    assert all(set(line["message"]) == {"role", "content"} for line in pieces)
    assert all(set(line) == {"model", "created_at", "message", "done"} and line["done"] is False for line in pieces)
    assert set(end) == {"model", "created_at", "message", "done"} | END
    assert (end["done"], end["done_reason"], end["model"]) == (True, "stop", "m")
    assert end["message"] == {"role": "assistant", "content": ""}
    assert (end["prompt_eval_count"], end["eval_count"]) == (6, 3)
    assert (end["load_duration"], end["prompt_eval_duration"]) == (500_000_000, 100_000_000)
    assert end["mlxd"]["queue_s"] == 0.5
    assert all(isinstance(end[name], int) for name in DURATIONS)
    assert datetime.fromisoformat(end["created_at"]).tzinfo is not None


async def test_the_streams_type_is_that_of_lines():
    async with serving() as served:
        reader, writer = await post(served.port, CHAT, chat())
        served.engine.put(await within(served.engine.arrivals.get()), last("x"))
        status, headers = await answer_head(reader)
        writer.close()
    assert (status, headers["content-type"]) == (200, "application/x-ndjson")
    assert headers["x-request-id"]


async def test_a_whole_chat_and_a_whole_text_are_one_object():
    script = (piece("Hel"), last("lo", FinishReason.LENGTH))
    _, whole = await sent(chat(stream=False), CHAT, *script)
    assert whole["message"] == {"role": "assistant", "content": "Hello"}
    assert (whole["done"], whole["done_reason"], whole["eval_count"]) == (True, "length", 3)
    _, text = await sent(generate(stream=False), GENERATE, *script)
    assert text["response"] == "Hello"
    assert set(text) == {"model", "created_at", "response", "done"} | END


async def test_the_client_reads_streams_of_both_calls():
    async with serving() as served:
        client = client_of(served)
        script = (said("", reasoning="Hm."), piece("Hello"), last(""))
        parts = await parts_of(served, client.chat("gpt-4o", [USER], stream=True), *script)
        assert "".join(part.message.thinking or "" for part in parts) == "Hm."
        assert "".join(part.message.content for part in parts) == "Hello"
        assert (parts[-1].done_reason, parts[-1].model) == ("stop", "gpt-4o")
        _, answer = await asked_of(
            served, client.generate("m", "hi", think=False), said("", reasoning="Hm."), last("Yes")
        )
        assert (answer.response, answer.thinking, answer.eval_count) == ("Yes", "Hm.", 3)


async def test_lines_end_only_where_they_end():
    """Clients that split at every line end of Unicode read a line as one."""
    odd = "a\u2028b\u2029c\x85d\ne\x1ef"
    async with serving() as served:
        parts = await parts_of(served, client_of(served).chat("m", [USER], stream=True), last(odd))
    assert "".join(part.message.content for part in parts) == odd


async def test_tool_calls_have_arguments_as_objects_and_are_numbered():
    calls = (ToolCall("get_weather", '{"city":"Paris"}'), ToolCall("get_weather", "{}", "own"))
    _, (*pieces, end) = await sent(
        chat(tools=[WEATHER]),
        CHAT,
        said("", tool_calls=calls[:1]),
        RequestOutput("", Usage(6, 3), tool_calls=calls[1:], finish_reason=FinishReason.STOP),
    )
    functions = [call for line in pieces for call in line["message"]["tool_calls"]]
    assert [call["function"] for call in functions] == [
        {"index": 0, "name": "get_weather", "arguments": {"city": "Paris"}},
        {"index": 1, "name": "get_weather", "arguments": {}},
    ]
    assert functions[0]["id"]
    assert functions[1]["id"] == "own"
    assert end["done_reason"] == "stop"


@pytest.mark.parametrize("stream", [True, False])
async def test_the_arguments_of_a_call_are_what_the_model_wrote_on_one_line(stream):
    written = '{\n"much": 1e999,\r\n"half": "\\ud83d"\n}'
    output = RequestOutput("", Usage(6, 3), tool_calls=(ToolCall("f", written),), finish_reason=FinishReason.STOP)
    _, answer = await sent(chat(tools=[WEATHER], stream=stream), CHAT, output)
    [call] = (answer[0] if stream else answer)["message"]["tool_calls"]
    assert call["function"]["arguments"] == {"much": float("inf"), "half": "\ud83d"}


async def test_logprobs_have_texts_and_bytes():
    logprobs = (TokenLogprobs(65, -0.5, ((65, -0.5), (66, -float("inf")))),)
    body = chat(logprobs=True, top_logprobs=2, stream=False)
    async with serving() as served:
        asking = asyncio.ensure_future(ask(served, body, CHAT))
        request = await within(served.engine.arrivals.get())
        assert request.sampling.logprobs == 2
        served.engine.put(request, RequestOutput("A", Usage(6, 1), finish_reason=FinishReason.STOP, logprobs=logprobs))
        _, text = await asking
    [entry] = json.loads(text)["logprobs"]
    assert (entry["token"], entry["logprob"], entry["bytes"]) == ("A", -0.5, [65])
    assert entry["top_logprobs"][1] == {"token": "B", "logprob": -9999.0, "bytes": [66]}
    ollama.ChatResponse.model_validate_json(text)


async def test_a_stream_that_waits_sends_pieces_that_change_nothing():
    async with serving(server=QUICK) as served:
        served.registry.open.clear()
        client = client_of(served)
        stream = await client.generate("m", "hi", stream=True)
        parts = [await within(anext(aiter(stream)))]
        served.registry.open.set()
        served.engine.put(await within(served.engine.arrivals.get()), last("Hello"))
        parts += [part async for part in stream]
    assert (parts[0].response, parts[0].done) == ("", False)
    assert "".join(part.response for part in parts) == "Hello"
    assert [part.done for part in parts].count(True) == 1


async def test_an_error_after_the_first_byte_is_the_last_line():
    async with serving() as served:
        status, text = await ask(served, chat(), CHAT, piece("Hel"), engine_errors.FootprintExceeded(9, 5, "auto"))
        seen = lines(text)
        assert (status, seen[0]["message"]["content"]) == (200, "Hel")
        assert set(seen[-1]) == {"error", "code", "param", "details"}
        assert seen[-1]["code"] == "memory_ceiling"
        script = (piece("Hel"), engine_errors.FootprintExceeded(9, 5, "auto"))
        with pytest.raises(ollama.ResponseError, match="footprint"):
            await parts_of(served, client_of(served).chat("m", [USER], stream=True), *script)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (registry_errors.ModelNotLoaded("m"), 409, "model_not_loaded"),
        (registry_errors.ResidencyQueueFull(1, 4.2), 429, "queue_full"),
        (registry_errors.ModelTooLarge("m", 9, 5, "cgroup"), 507, "model_too_large"),
        (KeyError("odd"), 500, "internal_error"),
    ],
)
async def test_an_error_before_the_first_byte_has_its_status(error, status, code, stream):
    async with serving() as served:
        served.registry.refusal = error
        seen, text = await ask(served, chat(stream=stream), CHAT)
    shown = json.loads(text)
    assert (seen, shown["code"]) == (status, code)
    assert isinstance(shown["error"], str)


async def test_the_client_raises_an_error_with_its_status_and_words():
    async with serving() as served:
        with pytest.raises(ollama.ResponseError, match="there is no model 'gpt-4'; did you mean gpt-4o") as failed:
            await client_of(served).chat("gpt-4", [USER])
        assert failed.value.status_code == 404
        with pytest.raises(ollama.ResponseError, match="makes embeddings") as failed:
            await client_of(served).generate("org/embed", "hi")
        assert failed.value.status_code == 400


async def test_a_cancelled_request_ends_with_what_it_has():
    async with serving() as served:
        asking = asyncio.ensure_future(ask(served, chat(), CHAT, **{"X-Request-Id": "r-1"}))
        request = await within(served.engine.arrivals.get())
        served.engine.put(request, piece("Hel"))
        status, _ = await ask_to_cancel(served, "r-1")
        assert status == 200
        first, end = lines((await asking)[1])
    assert first["message"]["content"] == "Hel"
    assert (end["done"], end["done_reason"], end["mlxd"]["cancelled"]) == (True, "stop", True)


async def ask_to_cancel(served, name):
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(f"DELETE /v1/requests/{name} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    head = await answer_head(reader)
    writer.close()
    return head


async def test_a_client_that_leaves_ends_its_request():
    async with serving() as served:
        reader, writer = await post(served.port, CHAT, chat())
        request = await within(served.engine.arrivals.get())
        served.engine.put(request, piece("Hel"))
        await reader.readuntil(b"Hel")
        writer.close()
        name, finished = await within(served.engine.departures.get())
    assert (name, finished) == (request.id, False)


async def test_a_client_says_how_long_it_waits():
    async with serving() as served:
        status, _ = await ask(served, chat(), CHAT, last("x"), **{"X-Mlxd-Max-Wait": "3s"})
        assert status == 200
        assert served.registry.waits.get_nowait() == ("m", 3.0)
        assert (await ask(served, chat(messages=[]), CHAT, **{"X-Mlxd-Max-Wait": "4s"}))[0] == 200
        assert served.registry.waits.get_nowait() == ("m", 4.0)
