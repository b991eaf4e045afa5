"""The Ollama calls over a programmable engine: the shapes of answers, and what the engine is given."""

import asyncio
import json
from datetime import datetime

import ollama
import pytest
from answer_models import WEATHER
from api_calls import QUICK, ask, within
from api_fakes import answer_head, last, piece, post, serving
from ollama_calls import CHAT, GENERATE, USER, asked_of, chat, client_of, generate, lines, parts_of, sent

from mlxd.daemon.settings import ModelSettings, ModelsSettings, PresetSettings, SamplingSettings
from mlxd.engines import errors as engine_errors
from mlxd.engines.types import FinishReason, GuideKind, RequestOutput, TokenLogprobs, ToolCall, Usage
from mlxd.registry import errors as registry_errors

DURATIONS = {"total_duration", "load_duration", "prompt_eval_duration", "eval_duration"}
END = {"done_reason", "prompt_eval_count", "eval_count", "mlxd"} | DURATIONS
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


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


async def test_options_are_the_engines_parameters():
    options = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.1,
        "seed": 7,
        "num_predict": 12,
        "stop": ["x", "y"],
        "repeat_penalty": 1.1,
        "presence_penalty": 0.25,
        "frequency_penalty": -0.5,
    }
    async with serving() as served:
        request, _ = await asked_of(served, client_of(served).chat("m", [USER], options=options), last(""))
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 40, 0.1)
    assert (sampling.seed, sampling.max_tokens, sampling.stop) == (7, 12, ("x", "y"))
    assert (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) == (1.1, 0.25, -0.5)


@pytest.mark.parametrize(
    ("options", "name", "value"),
    [
        ({"seed": -1}, "seed", None),
        ({"seed": -2}, "seed", 2**64 - 2),
        ({"num_predict": -1}, "max_tokens", 30),
        ({"num_predict": -2}, "max_tokens", 30),
        ({"top_k": -1}, "top_k", 0),
        ({"repeat_penalty": 0}, "repetition_penalty", 1.0),
        ({"temperature": None}, "temperature", 0.25),
        ({"stop": "x"}, "stop", ("x",)),
        (None, "temperature", 0.25),
    ],
)
async def test_values_that_ask_for_nothing_leave_it_to_the_model(options, name, value):
    entry = ModelSettings("m", sampling=SamplingSettings(temperature=0.25, max_tokens=30))
    async with serving(model=(entry,)) as served:
        asking = asyncio.ensure_future(ask(served, chat(options=options), CHAT))
        request = await within(served.engine.arrivals.get())
        served.engine.put(request, last(""))
        await asking
    assert getattr(request.sampling, name) == value


async def test_what_changes_nothing_is_named_in_the_head():
    options = {"num_ctx": 4096, "num_gpu": 1, "use_mmap": True, "temperature": 0, "mirostat": 0, "num_thread": None}
    async with serving() as served:
        reader, writer = await post(served.port, CHAT, chat(options=options, stream=False))
        served.engine.put(await within(served.engine.arrivals.get()), last("x"))
        _, headers = await answer_head(reader)
        writer.close()
    assert headers["x-mlxd-ignored"].split(", ") == ["options.num_ctx", "options.num_gpu", "options.use_mmap"]


@pytest.mark.parametrize(
    ("wanted", "text"), [("json", '{"type":"object"}'), (SCHEMA, json.dumps(SCHEMA, separators=(",", ":")))]
)
async def test_a_format_is_the_answers_guide(wanted, text, monkeypatch):
    seen = []

    def check_guide(_, guide):
        seen.append(guide)
        return guide

    monkeypatch.setattr("mlxd.daemon.api.wanted_guide.check_guide", check_guide)
    async with serving() as served:
        request, _ = await asked_of(served, client_of(served).generate("m", "hi", format=wanted), last(""))
    assert (request.sampling.guide.kind, request.sampling.guide.text) == (GuideKind.JSON_SCHEMA, text)
    assert seen == [request.sampling.guide]


async def test_no_format_is_no_guide():
    async with serving() as served:
        request, _ = await asked_of(served, client_of(served).chat("m", [USER], format=""), last(""))
    assert request.sampling.guide is None


THINKING = [
    ({"enable_thinking"}, False, True, {"enable_thinking": True}),
    ({"enable_thinking"}, True, False, {"enable_thinking": False}),
    ({"enable_thinking"}, False, "low", {"enable_thinking": True}),
    ({"reasoning_effort"}, False, "low", {"reasoning_effort": "low"}),
    ({"reasoning_effort"}, False, True, {}),
    (set(), True, True, {}),
    (set(), False, False, {}),
    (set(), False, None, {}),
]


@pytest.mark.parametrize(("reads", "marks", "think", "variables"), THINKING)
async def test_thinking_is_said_in_the_words_of_the_template(reads, marks, think, variables):
    async with serving() as served:
        served.engine.tokenizer.variables = reads
        served.engine.tokenizer.has_reasoning = marks
        status, text = await ask(served, chat(think=think), CHAT, last("x"))
        assert status == 200, text
        [(_, template)] = served.engine.tokenizer.chats
    assert template == variables


@pytest.mark.parametrize("think", [True, "high"])
async def test_a_model_that_cannot_think_does_not_pretend(think):
    async with serving() as served:
        served.engine.tokenizer.has_reasoning = False
        status, text = await ask(served, chat(think=think), CHAT)
    assert (status, json.loads(text)["code"], json.loads(text)["param"]) == (400, "unsupported_capability", "think")


async def test_messages_reach_the_template_in_its_form():
    call = {"function": {"name": "get_weather", "arguments": {"city": "Paris"}}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather?", "images": []},
        {"role": "assistant", "thinking": "Look.", "tool_calls": [call, call, {"id": "own", **call}]},
        {"role": "tool", "content": "Rain.", "tool_call_id": "own"},
        {"role": "tool", "content": "Sunny.", "tool_name": "get_weather"},
        {"role": "tool", "content": "Foggy."},
        {"role": "tool", "content": "Late."},
    ]
    async with serving() as served:
        status, text = await ask(served, chat(messages=messages), CHAT, last("x"))
        assert status == 200, text
        [(seen, _)] = served.engine.tokenizer.chats
    assert seen[0] == {"role": "system", "content": "Be brief."}
    assert seen[1] == {"role": "user", "content": "Weather?"}
    assert seen[2]["reasoning_content"] == "Look."
    assert seen[2]["content"] == ""
    assert [call["id"] for call in seen[2]["tool_calls"]] == ["call00001", "call00002", "own"]
    assert seen[2]["tool_calls"][0]["function"] == {"name": "get_weather", "arguments": {"city": "Paris"}}
    assert [message.get("tool_call_id") for message in seen[3:]] == ["own", "call00001", "call00002", None]
    assert [message.get("name") for message in seen[3:]] == [None, "get_weather", None, None]


async def test_tools_reach_the_template_and_the_parser_in_openais_form():
    def get_weather(city: str) -> str:
        """The weather.

        Args:
          city: Where.
        """
        return city

    async with serving() as served:
        request, _ = await asked_of(served, client_of(served).chat("m", [USER], tools=[get_weather]), last("x"))
        [offered] = served.engine.tokenizer.offered
    [tool] = offered
    assert (tool["type"], tool["function"]["name"]) == ("function", "get_weather")
    assert tool["function"]["parameters"]["properties"]["city"]["type"] == "string"
    assert request.chat.tools == tuple(offered)


async def test_a_prompt_is_a_users_message_after_the_systems():
    async with serving() as served:
        status, _ = await ask(served, generate(system="Be brief."), GENERATE, last("x"))
        assert status == 200
        [(seen, _)] = served.engine.tokenizer.chats
    assert seen == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]


async def test_a_raw_prompt_goes_on_as_it_is():
    async with serving() as served:
        request, _ = await asked_of(served, client_of(served).generate("m", "Once", raw=True), last("x"))
        assert served.engine.tokenizer.chats == []
    assert request.prompt == tuple(map(ord, "Once"))
    assert request.continues_text
    assert request.chat is None


async def test_a_preset_and_the_default_model_are_meant_as_everywhere():
    preset = PresetSettings("m-cold", SamplingSettings(temperature=0.0), {"enable_thinking": False})
    entry = ModelSettings("m", presets=(preset,))
    async with serving(model=(entry,), models=ModelsSettings(default="m")) as served:
        asking = asyncio.ensure_future(ask(served, {"messages": [USER], "stream": False}, CHAT))
        served.engine.put(await within(served.engine.arrivals.get()), last("x"))
        assert json.loads((await asking)[1])["model"] == "m"
        request, answer = await asked_of(served, client_of(served).chat("m-cold:latest", [USER]), last("x"))
    assert (request.sampling.temperature, answer.model) == (0.0, "m-cold:latest")
    assert served.engine.tokenizer.chats[-1][1] == {"enable_thinking": False}


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
