"""Messages as Anthropic's client reads them, whole and streamed, from an engine that says what a test wants."""

import asyncio
import json
from datetime import UTC, datetime

import aiohttp
import anthropic
import msgspec
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from anthropic_calls import COUNT, MESSAGES, USER, WEATHER, answer_of, asks, client_of, final_of, named_events, wire
from api_calls import QUICK, within
from api_fakes import answer_head, last, piece, post, serving
from pydantic import TypeAdapter

from mlxd.daemon.api.anthropic.content import ContentEvents, whole_content
from mlxd.daemon.api.anthropic.objects import (
    BlockDelta,
    BlockStart,
    InputJsonDelta,
    SignatureDelta,
    TextDelta,
    ThinkingDelta,
)
from mlxd.daemon.keys import ApiKey, Scope, hash_of
from mlxd.engines.errors import EngineQueueFull, FootprintExceeded
from mlxd.engines.types import FinishReason, RequestOutput, Timing, ToolCall, Usage
from mlxd.registry.errors import ModelUnloaded, ModelWaitTimeout

CALLS = (ToolCall("weather", '{"city": "Köln"}', "c1"), ToolCall("clock", "{}", "c1"))
THOUGHT = RequestOutput("", Usage(6, 1, 4), reasoning="Let me ")
MORE = RequestOutput("Hel", Usage(6, 2, 4), reasoning="think.")
CALLING = RequestOutput(" the", Usage(6, 3, 4), tool_calls=CALLS)
SCRIPT = (THOUGHT, MORE, CALLING, last("re"))
EVENT = TypeAdapter(RawMessageStreamEvent)


def kinds(message):
    return [block.type for block in message.content]


def plain(message):
    """A message without what differs from one to the next."""
    shown = message.to_dict()
    shown.pop("id")
    shown.pop("mlxd", None)
    blocks = [{name: value for name, value in block.items() if name != "id"} for block in shown["content"]]
    return {**{name: value for name, value in shown.items() if value is not None}, "content": blocks}


async def test_a_message_has_thoughts_then_text_then_calls():
    async with serving() as served:
        message = await answer_of(served, *SCRIPT)
    assert kinds(message) == ["thinking", "text", "tool_use", "tool_use"]
    thought, text, weather, clock = message.content
    assert (thought.thinking, text.text) == ("Let me think.", "Hel there")
    assert (weather.name, weather.input, weather.id) == ("weather", {"city": "Köln"}, "c1")
    assert (clock.name, clock.input) == ("clock", {})
    assert clock.id != weather.id
    assert (message.stop_reason, message.stop_sequence, message.role) == ("tool_use", None, "assistant")


@pytest.mark.parametrize("thinking", [None, {"type": "adaptive", "display": "omitted"}])
@pytest.mark.parametrize("script", [SCRIPT, [last("")], [piece("x"), MORE, last("y", FinishReason.LENGTH)]])
async def test_a_stream_put_together_is_the_whole_message(script, thinking):
    fields = {} if thinking is None else {"thinking": thinking}
    async with serving() as served:
        whole = await answer_of(served, *script, **fields)
        streamed = await final_of(served, *script, **fields)
    assert plain(streamed) == plain(whole)


@pytest.mark.parametrize("shows", [True, False])
@pytest.mark.parametrize(
    "outputs", [SCRIPT, (MORE, MORE, last("a")), (piece("a"), THOUGHT, piece("b"), CALLING), (CALLING, THOUGHT, MORE)]
)
def test_blocks_are_the_same_whole_and_in_events_in_whatever_order_they_come(outputs, shows):
    events = ContentEvents(shows_thinking=shows)
    streamed = [event for output in outputs for event in events.more(output)] + list(events.end())
    put_together = {}
    for event in streamed:
        match event:
            case BlockStart(index, block):
                put_together[index] = json.loads(msgspec.json.encode(block))
            case BlockDelta(index, TextDelta(text)):
                put_together[index]["text"] += text
            case BlockDelta(index, ThinkingDelta(text)):
                put_together[index]["thinking"] += text
            case BlockDelta(index, SignatureDelta(text)):
                put_together[index]["signature"] += text
            case BlockDelta(index, InputJsonDelta(text)):
                put_together[index]["input"] = json.loads(text)
    whole = json.loads(msgspec.json.encode(whole_content(outputs, shows_thinking=shows)))
    without_ids = [[{**block, "id": None} for block in blocks] for blocks in (put_together.values(), whole)]
    assert without_ids[0] == without_ids[1]
    assert shows or "" in {block["thinking"] for block in whole if block["type"] == "thinking"}


async def test_the_events_of_a_stream_are_those_of_the_api_in_its_order():
    async with serving() as served:
        status, headers, text = await wire(served, asks(stream=True), THOUGHT, MORE, CALLING, last("re"))
    events = named_events(text)
    assert (status, headers["Content-Type"]) == (200, "text/event-stream; charset=utf-8")
    assert all(data["type"] == name for name, data in events)
    shown = [event for event in events if event[0] != "ping"]
    for _, data in shown:
        EVENT.validate_python(data, strict=True)
    assert (shown[0][0], shown[-2][0], shown[-1][0]) == ("message_start", "message_delta", "message_stop")
    start = shown[0][1]["message"]
    assert (start["content"], start["stop_reason"], start["usage"]["input_tokens"]) == ([], None, 2)
    open_block, place, deltas = None, -1, []
    for name, data in shown[1:-2]:
        match name:
            case "content_block_start":
                assert (open_block, data["index"]) == (None, place + 1)
                open_block, place = data["content_block"]["type"], data["index"]
            case "content_block_delta":
                assert data["index"] == place
                deltas.append((open_block, data["delta"]["type"]))
            case "content_block_stop":
                assert data["index"] == place
                open_block = None
            case _:
                pytest.fail(name)
    assert open_block is None
    assert set(deltas) == {
        ("thinking", "thinking_delta"),
        ("thinking", "signature_delta"),
        ("text", "text_delta"),
        ("tool_use", "input_json_delta"),
    }


@pytest.mark.parametrize(
    ("output", "reason", "sequence"),
    [
        (last("a"), "end_turn", None),
        (last("a", FinishReason.LENGTH), "max_tokens", None),
        (RequestOutput("a", Usage(6, 3), Timing(), FinishReason.STOP, stop="\n\n"), "stop_sequence", "\n\n"),
        (RequestOutput("", Usage(6, 3), Timing(), FinishReason.STOP, tool_calls=CALLS), "tool_use", None),
        (RequestOutput("", Usage(6, 3), Timing(), FinishReason.LENGTH, tool_calls=CALLS), "max_tokens", None),
        (RequestOutput("", Usage(6, 3), Timing(), FinishReason.STOP, tool_calls=CALLS, stop="x"), "tool_use", None),
        (RequestOutput("", Usage(6, 3), Timing(), FinishReason.STOP, True, tool_calls=CALLS), "end_turn", None),
    ],
)
async def test_a_message_says_why_it_ended(output, reason, sequence):
    async with serving() as served:
        for message in (await answer_of(served, output), await final_of(served, output)):
            assert (message.stop_reason, message.stop_sequence) == (reason, sequence)


async def test_an_empty_answer_has_no_blocks():
    async with serving() as served:
        assert (await answer_of(served, last(""))).content == []
        _, _, text = await wire(served, asks(stream=True), last(""))
    assert [name for name, _ in named_events(text)] == ["message_start", "message_delta", "message_stop"]


async def test_what_the_cache_gave_is_not_counted_as_input():
    async with serving() as served, client_of(served) as client:
        whole, streamed = await answer_of(served, last("a")), await final_of(served, last("a"))
        counted = await client.messages.count_tokens(model="m", messages=[USER])
    for usage in (whole.usage, streamed.usage):
        assert (usage.input_tokens, usage.cache_read_input_tokens, usage.cache_creation_input_tokens) == (2, 4, 0)
        assert usage.output_tokens == 3
        assert usage.input_tokens + usage.cache_read_input_tokens == counted.input_tokens


async def test_the_end_of_a_message_says_how_it_came_about():
    async with serving() as served:
        whole = await answer_of(served, last("a"))
        _, _, text = await wire(served, asks(stream=True), last("a"))
    [delta] = [data for name, data in named_events(text) if name == "message_delta"]
    assert whole.to_dict()["mlxd"].keys() == delta["mlxd"].keys() == {
        "queue_s", "load_s", "prefill_s", "ttft_s", "decode_tps", "cancelled",
    }  # fmt: skip
    assert (delta["mlxd"]["queue_s"], delta["mlxd"]["cancelled"]) == (0.5, False)


async def test_thoughts_that_are_omitted_come_back_with_the_history():
    async with serving() as served:
        omitted = {"type": "adaptive", "display": "omitted"}
        message = await answer_of(served, THOUGHT, MORE, last("lo"), thinking=omitted)
        assert message.content[0].thinking == ""
        history = [USER, {"role": "assistant", "content": message.content}, USER]
        await answer_of(served, last("a"), messages=history)
        assert served.engine.tokenizer.chats[-1][0][1] == {
            "role": "assistant",
            "content": "Hello",
            "reasoning_content": "Let me think.",
        }


async def test_tokens_that_are_not_shown_are_pings():
    async with serving() as served:
        body = asks(stream=True, thinking={"type": "enabled", "budget_tokens": 1024, "display": "omitted"})
        _, _, text = await wire(served, body, THOUGHT, THOUGHT, last("a"))
    names = [name for name, _ in named_events(text)]
    assert "thinking_delta" not in text
    assert names[0] == "message_start"
    assert names[-1] == "message_stop"


async def test_a_stream_that_waits_gets_pings_and_says_what_for():
    async with serving(server=QUICK) as served:
        served.registry.open.clear()
        reader, writer = await post(served.port, MESSAGES, asks(stream=True))
        assert (await answer_head(reader))[0] == 200
        seen = (await within(reader.readuntil(b'{"type":"ping"}'))).decode()
        assert ": waiting\n\nevent: ping\n" in seen.replace("\r\n", "\n")
        writer.close()
        assert await within(served.registry.departures.get())


async def test_pings_before_the_first_event_do_not_disturb_a_client():
    async with serving(server=QUICK) as served:
        served.registry.open.clear()

        async def read():
            async with client_of(served) as client, client.messages.stream(**asks()) as stream:
                return [event.type async for event in stream]

        reading = asyncio.ensure_future(read())
        await within(served.registry.waits.get())
        served.registry.open.set()
        request = await within(served.engine.arrivals.get())
        served.engine.put(request, last("a"))
        assert (await within(reading))[0] == "message_start"


REFUSALS = [
    (EngineQueueFull(3, 3), (429, anthropic.RateLimitError, "rate_limit_error", "queue_full")),
    (ModelWaitTimeout("m", 1.0, 1.0), (503, anthropic.ServiceUnavailableError, "timeout_error", "model_wait_timeout")),
    (ModelUnloaded("m"), (503, anthropic.ServiceUnavailableError, "overloaded_error", "model_unloaded")),
    (RuntimeError("secret"), (500, anthropic.InternalServerError, "api_error", "internal_error")),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("error", "expected"), REFUSALS)
async def test_a_refusal_has_the_status_and_the_type_that_the_client_knows(error, expected, stream):
    status, kind, name, code = expected
    async with serving() as served, client_of(served) as client:
        served.registry.refusal = error
        with pytest.raises(kind) as caught:
            await client.messages.create(**asks(stream=stream))
    refused = caught.value
    assert (refused.status_code, refused.type, refused.body["error"]["code"]) == (status, name, code)
    assert refused.request_id == refused.body["request_id"] == refused.response.headers["x-request-id"]
    assert refused.body["type"] == "error"
    assert "secret" not in str(refused)


async def test_a_key_is_asked_for_in_the_clients_own_classes():
    async with serving(
        keys=(ApiKey("me", (Scope.INFER,), hash_of("mlxd-me"), datetime.now(UTC), ("org/*",)),)
    ) as served:
        for key, kind in (("mlxd-you", anthropic.AuthenticationError), ("mlxd-me", anthropic.PermissionDeniedError)):
            async with anthropic.AsyncAnthropic(base_url=served.url, api_key=key, max_retries=0) as client:
                with pytest.raises(kind) as caught:
                    await client.messages.create(**asks())
            assert caught.value.type in ("authentication_error", "permission_error")
            assert caught.value.body["type"] == "error"


async def test_errors_of_the_request_are_the_clients_own_classes():
    async with serving() as served, client_of(served) as client:
        with pytest.raises(anthropic.BadRequestError) as bad:
            await client.messages.create(**asks(max_tokens=0))
        with pytest.raises(anthropic.NotFoundError) as unknown:
            await client.messages.create(**asks(model="mm"))
        with pytest.raises(anthropic.NotFoundError):
            await client.messages.batches.list()
        with pytest.raises(anthropic.BadRequestError) as embedding:
            await client.messages.create(**asks(model="org/embed"))
    assert (bad.value.type, bad.value.body["error"]["param"]) == ("invalid_request_error", "max_tokens")
    assert unknown.value.body["error"]["details"] == {"suggestions": ["m"]}
    assert embedding.value.body["error"]["code"] == "unsupported_capability"


async def test_a_prompt_that_does_not_fit_is_refused_in_the_words_that_clients_read():
    async with serving() as served, client_of(served) as client:
        with pytest.raises(anthropic.BadRequestError) as long_answer:
            await client.messages.create(**asks(max_tokens=95))
        with pytest.raises(anthropic.BadRequestError) as long_prompt:
            await client.messages.create(**asks(messages=[{"role": "user", "content": "x" * 100}]))
    assert "input length and `max_tokens` exceed context limit: 6 + 95 > 100, decrease" in str(long_answer.value)
    assert "prompt is too long: 101 tokens > 100 maximum" in str(long_prompt.value)
    assert long_answer.value.body["error"]["details"]["context_length"] == 100


async def test_what_fails_after_the_first_byte_is_an_error_event():
    async with serving() as served:
        error = FootprintExceeded(2, 1, "server")
        _, _, text = await wire(served, asks(stream=True), piece("a"), error)
        events = named_events(text)
        assert events[-1][0] == "error"
        assert events[-1][1]["error"]["type"] == "overloaded_error"
        assert "message_stop" not in text
        with pytest.raises(anthropic.APIStatusError) as caught:
            await final_of(served, piece("a"), error)
    assert caught.value.body["error"]["code"] == "memory_ceiling"
    assert set(events[-1][1]["error"]) == {"type", "message", "code", "param", "details"}


async def test_a_client_that_leaves_ends_its_message():
    async with serving() as served:
        reader, writer = await post(served.port, MESSAGES, asks(stream=True))
        request = await within(served.engine.arrivals.get())
        served.engine.put(request, piece("a"))
        await within(reader.readuntil(b"text_delta"))
        writer.transport.abort()
        assert await within(served.engine.departures.get()) == (request.id, False)


async def test_a_message_can_be_ended_by_its_own_id():
    async with serving() as served:
        reader, writer = await post(served.port, MESSAGES, asks(stream=True), X_Request_Id="r1")
        served.engine.put(await within(served.engine.arrivals.get()), piece("a"))
        await within(reader.readuntil(b"text_delta"))
        status, _, text = await delete(served, "msg_r1")
        rest = (await within(reader.readuntil(b"message_stop\n"))).decode()
        writer.close()
    assert (status, json.loads(text)["cancelled"]) == (200, True)
    assert '"stop_reason":"end_turn"' in rest
    assert '"cancelled":true' in rest


async def delete(served, request_id):
    async with aiohttp.ClientSession(served.url) as http, http.delete(f"/v1/requests/{request_id}") as answer:
        return answer.status, answer.headers, await answer.text()


async def test_a_count_generates_nothing_and_passes_over_what_shapes_an_answer():
    async with serving() as served:
        status, headers, text = await wire(served, asks(stream=True, temperature=0, tools=[WEATHER]), path=COUNT)
        assert (status, json.loads(text)) == (200, {"input_tokens": 6})
        assert headers["X-Mlxd-Ignored"] == "max_tokens, stream, temperature"
        assert served.engine.arrivals.empty()
        assert served.engine.tokenizer.offered[-1][0]["function"]["name"] == "weather"


async def test_a_count_can_be_refused_as_a_message_is():
    async with serving() as served, client_of(served) as client:
        served.registry.refusal = ModelUnloaded("m")
        with pytest.raises(anthropic.ServiceUnavailableError):
            await client.messages.count_tokens(model="m", messages=[USER])


async def test_fields_that_change_nothing_are_named_in_the_answer():
    fields = {
        "metadata": {"user_id": "me"},
        "service_tier": "auto",
        "context_management": {"edits": []},
        "system": [{"type": "text", "text": "x-anthropic-billing-header: cch=1;"}],
        "tools": [{**WEATHER, "strict": True}],
        "output_config": {"effort": "low", "task_budget": {"type": "tokens", "total": 5}},
    }
    async with serving() as served:
        _, headers, _ = await wire(served, asks(**fields), last("a"))
        assert [message["role"] for message in served.engine.tokenizer.chats[-1][0]] == ["user"]
    assert headers["X-Mlxd-Ignored"].split(", ") == [
        "metadata",
        "service_tier",
        "context_management",
        "tools.strict",
        "output_config.task_budget",
        "system.x-anthropic-billing-header",
    ]


async def test_any_version_and_any_beta_is_taken():
    async with serving() as served, client_of(served) as client:
        headers = {"anthropic-version": "2099-01-01", "anthropic-beta": "what,ever", "X-Request-Id": "r1"}
        status, answered, _ = await wire(served, asks(), last("a"), **headers)
        beta = client.beta.messages.create(**asks(), betas=["context-1m-2025-08-07"])
        assert (status, answered["request-id"]) == (200, "r1")
        reading = asyncio.ensure_future(beta)
        served.engine.put(await within(served.engine.arrivals.get()), last("b"))
        assert (await within(reading)).content[0].text == "b"


async def test_the_list_of_models_is_one_for_anthropics_client_too():
    async with serving() as served, client_of(served) as client:
        models = [model async for model in client.models.list()]
        one = await client.models.retrieve("gpt-4o")
    assert [model.id for model in models] == ["m", "org/embed", "gpt-4o", "m-cold"]
    for model in (*models, one):
        assert type(model).model_validate(model.to_dict(), strict=False)
        assert (model.type, model.display_name, model.lifecycle) == ("model", model.id, "active")


async def test_a_message_is_valid_for_a_strict_reader():
    async with serving() as served:
        _, _, text = await wire(served, asks(), *SCRIPT)
    assert Message.model_validate_json(text, strict=True).usage.output_tokens == 3
