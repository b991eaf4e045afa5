"""POST /v1/responses against a scripted engine: answers, streams and their events, as the openai package has them."""

import asyncio
import json
from types import SimpleNamespace

import aiohttp
import openai
import pytest
from api_calls import QUICK, client_of, within
from api_fakes import last, piece, serving
from msgspec.structs import replace
from openai.types.responses import Response, ResponseStreamEvent
from openai.types.responses.input_token_count_response import InputTokenCountResponse
from pydantic import TypeAdapter
from responses_calls import TOOL, call, give, giving, made, read, streamed, streaming, user, wanted

from mlxd.daemon.api.errors import describe
from mlxd.daemon.api.responses.draft import Draft
from mlxd.daemon.api.responses.objects import ResponseObject
from mlxd.daemon.api.responses.store import STORE
from mlxd.engines.errors import EngineQueueFull, FootprintExceeded
from mlxd.engines.types import FinishReason, RequestOutput, TokenLogprobs, ToolCall, Usage

EVENT = TypeAdapter(ResponseStreamEvent)
CALL = ToolCall("weather", '{"city":"Paris"}', "call9xyz1")
THINKING = [replace(piece(""), reasoning="Well"), replace(piece(""), reasoning=", so")]
EVERYTHING = [*THINKING, piece("Hel"), piece("lo"), replace(piece(""), tool_calls=(CALL,)), last("")]


def kinds(events):
    return [event["type"].removeprefix("response.") for event in events]


def without_ids(value):
    """An answer without what differs from one to the next."""
    if isinstance(value, list):
        return [without_ids(element) for element in value]
    if not isinstance(value, dict):
        return value
    own = {"id", "created_at", "completed_at", "mlxd"}
    return {key: without_ids(element) for key, element in value.items() if key not in own}


async def test_an_answer_has_its_text_usage_and_vendor_fields():
    async with serving() as served:
        response = await made(served, piece("Hel"), last("lo"), metadata={"a": "b"}, user="u")
    Response.model_validate(response, strict=True)
    [message] = response["output"]
    assert message["content"] == [{"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}]
    assert (response["status"], message["status"], response["metadata"]) == ("completed", "completed", {"a": "b"})
    assert response["usage"]["input_tokens_details"]["cached_tokens"] == 4
    assert response["usage"]["total_tokens"] == 9
    assert response["mlxd"]["cancelled"] is False
    assert response["completed_at"] >= response["created_at"]


async def test_reasoning_text_and_calls_are_items_of_their_own():
    async with serving() as served:
        response = await made(served, *EVERYTHING, tools=[TOOL])
    parsed = Response.model_validate(response, strict=True)
    assert [item.type for item in parsed.output] == ["reasoning", "message", "function_call"]
    assert parsed.output[0].content[0].text == "Well, so"
    assert parsed.output[0].summary == []
    assert parsed.output_text == "Hello"
    made_call = parsed.output[2]
    assert (made_call.name, made_call.arguments, made_call.call_id) == ("weather", CALL.arguments, "call9xyz1")
    assert len({item.id for item in parsed.output}) == 3


async def test_a_stream_has_every_event_in_order_and_numbered_without_gaps():
    async with serving() as served:
        events = await streamed(served, *EVERYTHING, tools=[TOOL])
    for event in events:
        EVENT.validate_python(event, strict=True)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert kinds(events) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    assert [event["output_index"] for event in events if "output_index" in event] == [0] * 7 + [1] * 7 + [2] * 4


async def test_what_is_streamed_is_the_whole_answer():
    async with serving() as served:
        whole = await made(served, *EVERYTHING, tools=[TOOL])
        events = await streamed(served, *EVERYTHING, tools=[TOOL])
    final = events[-1]["response"]
    assert without_ids(final) == without_ids(whole)
    assert [event["item"] for event in events if event["type"] == "response.output_item.done"] == final["output"]
    assert {event["response"]["id"] for event in events if "response" in event} == {final["id"]}


async def test_several_runs_of_text_and_calls_are_items_in_their_order():
    again = ToolCall("weather", "{}", "call9xyz1")
    script = [replace(piece("a"), tool_calls=(CALL, again)), piece("b"), last("c")]
    async with serving() as served:
        response = await made(served, *script, tools=[TOOL])
    assert [item["type"] for item in response["output"]] == ["message", "function_call", "function_call", "message"]
    assert len({item["call_id"] for item in response["output"][1:3]}) == 2
    assert response["output"][3]["content"][0]["text"] == "bc"


async def test_a_slow_reader_has_all_items_in_their_order():
    script = [piece("a"), replace(piece(""), tool_calls=(CALL,)), piece("b"), *THINKING, last("c")]
    async with serving() as served:
        for stream in (False, True):
            asking = asyncio.ensure_future(answered(served, wanted(tools=[TOOL], stream=stream)))
            request = await within(served.engine.arrivals.get())
            for item in script:
                served.engine.put(request, item)
            response = await within(asking)
            kinds = [item["type"] for item in response["output"]]
            assert kinds == ["message", "function_call", "message", "reasoning", "message"]


async def answered(served, body):
    """The response, streamed or not."""
    async with aiohttp.ClientSession() as http, http.post(f"{served.url}/v1/responses", json=body) as answer:
        text = await answer.text()
    return json.loads(text.rpartition("data: ")[2])["response"] if body["stream"] else json.loads(text)


async def test_an_answer_at_its_limit_is_incomplete_and_says_why():
    async with serving() as served:
        events = await streamed(served, piece("Hel"), last("lo", FinishReason.LENGTH), max_output_tokens=3)
        kept = (await read(served, events[-1]["response"]["id"]))[1]
    final = events[-1]["response"]
    assert events[-1]["type"] == "response.incomplete"
    assert final["incomplete_details"] == {"reason": "max_output_tokens"}
    assert (final["status"], final["output"][0]["status"], final["completed_at"]) == ("incomplete", "incomplete", None)
    assert kept == final


async def test_an_answer_without_text_has_no_items():
    async with serving() as served:
        response = await made(served, last(""))
    assert (response["output"], response["status"]) == ([], "completed")


async def test_logprobs_are_those_of_all_tokens_up_to_the_end_of_the_message():
    def token(number):
        return TokenLogprobs(number, -0.5, ((number, -0.5), (65, -1.0)))

    script = [
        RequestOutput("", Usage(6, 1), reasoning="So", logprobs=(token(83),)),
        RequestOutput("", Usage(6, 2), logprobs=(token(60),)),
        RequestOutput("Hi", Usage(6, 3), logprobs=(token(72),)),
        replace(last(""), logprobs=(token(33),)),
    ]
    asked = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    async with serving() as served:
        whole = await made(served, *script, **asked)
        events = await streamed(served, *script, **asked)
        assert (await give_and_ask(served, asked)).sampling.logprobs == 2
    part = whole["output"][1]["content"][0]
    assert [entry["token"] for entry in part["logprobs"]] == ["S", "<", "H", "!"]
    assert part["logprobs"][1]["top_logprobs"][1] == {"token": "A", "logprob": -1.0, "bytes": [65]}
    deltas = [entry for event in events if event["type"].endswith("text.delta") for entry in event.get("logprobs", ())]
    assert deltas == part["logprobs"] == events[-1]["response"]["output"][1]["content"][0]["logprobs"]
    for event in events:
        EVENT.validate_python(event, strict=True)


async def give_and_ask(served, fields):
    """What the engine is asked for."""
    async with giving(served, last("x")) as given:
        await call(served, "POST", "/v1/responses", wanted(**fields))
    return await given


async def test_the_parameters_reach_the_engine_and_the_template():
    async with serving() as served:
        served.engine.tokenizer.variables = {"reasoning_effort"}
        fields = {
            "temperature": 0,
            "top_p": 0.5,
            "max_output_tokens": 7,
            "reasoning": {"effort": "low"},
            "tools": [{**TOOL, "description": "The weather.", "strict": True}],
            "parallel_tool_calls": False,
            "instructions": "Be brief.",
        }
        request = await give_and_ask(served, fields)
        [(messages, template)] = served.engine.tokenizer.chats
        [tools] = served.engine.tokenizer.offered
    assert (request.sampling.temperature, request.sampling.top_p, request.sampling.max_tokens) == (0, 0.5, 7)
    assert request.chat.max_calls == 1
    assert template == {"reasoning_effort": "low"}
    assert messages == [{"role": "system", "content": "Be brief."}, user("hello")]
    function = {"name": "weather", "description": "The weather.", "parameters": TOOL["parameters"]}
    assert list(tools) == [{"type": "function", "function": function}]


async def test_only_allowed_tools_are_shown_to_the_model():
    tools = [{**TOOL, "name": name} for name in ("a", "b", "c")]
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": n} for n in ("c", "a")]}
    async with serving() as served:
        await give_and_ask(served, {"tools": tools, "tool_choice": allowed})
        await give_and_ask(served, {"tools": tools, "tool_choice": "none"})
        offered = [[tool["function"]["name"] for tool in shown or ()] for shown in served.engine.tokenizer.offered]
        response = await made(served, last("x"), tools=tools, tool_choice=allowed)
    assert offered == [["a", "c"], []]
    assert response["tool_choice"] == allowed
    assert [tool["name"] for tool in response["tools"]] == ["a", "b", "c"]
    Response.model_validate(response, strict=True)


async def test_items_become_the_messages_that_templates_read():
    items = [
        {"role": "developer", "content": "Use tools."},
        {"role": "system", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"type": "message", "role": "user", "content": "weather?"},
        {"role": "developer", "content": "now"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Paris"}'},
        {"type": "function_call", "call_id": "c2", "name": "weather", "arguments": ""},
        {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "rain"}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        {"role": "assistant", "content": "Well."},
    ]
    async with serving() as served:
        await give_and_ask(served, {"input": items, "instructions": "Be brief."})
        [(messages, _)] = served.engine.tokenizer.chats
    calls = [
        {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Paris"}}},
        {"id": "c2", "type": "function", "function": {"name": "weather", "arguments": {}}},
    ]
    assert messages == [
        {"role": "system", "content": "Be brief.\n\nUse tools.\n\na\nb"},
        user("weather?"),
        {"role": "system", "content": "now"},
        {"role": "assistant", "content": "I look.", "reasoning_content": "Hm", "tool_calls": calls},
        {"role": "tool", "content": "sunny", "tool_call_id": "c1"},
        {"role": "tool", "content": "rain", "tool_call_id": "c2"},
        {"role": "assistant", "content": "No."},
        {"role": "assistant", "content": "Well."},
    ]


async def test_the_stream_helper_of_the_package_accepts_signs_of_life_and_gives_the_whole():
    async with serving(server=QUICK) as served, client_of(served) as client:
        served.registry.open.clear()
        async with client.responses.stream(model="m", input="hello", tools=[TOOL]) as stream:
            seen = []
            async for event in stream:
                seen.append(event.type)
                if seen.count("response.in_progress") == 4:
                    served.registry.open.set()
                    await give(served, *EVERYTHING)
                    break
            seen += [event.type async for event in stream]
            final = await stream.get_final_response()
    assert final.output_text == "Hello"
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call"]
    assert seen[0] == "response.created"
    assert seen[-1] == "response.completed"


async def test_a_stream_that_waits_says_so_in_events_and_comments():
    async with serving(server=QUICK) as served:
        served.registry.open.clear()
        async with streaming(served) as events:
            first = [await events.next() for _ in range(4)]
            served.registry.open.set()
            await give(served, piece("a"))
            await events.until("response.output_text.delta")
            beat = await events.until("response.in_progress")
            served.engine.put(next(iter(served.engine.live.values())).request, last("b"))
            rest = await events.rest()
    assert kinds(first) == ["created", "in_progress", "in_progress", "in_progress"]
    assert [event["sequence_number"] for event in first] == [0, 1, 2, 3]
    assert beat["response"]["status"] == "in_progress"
    assert rest[-1]["response"]["output"][0]["content"][0]["text"] == "ab"
    assert events.comments
    assert set(events.comments) == {": waiting"}


async def test_what_fails_before_the_first_byte_has_a_status_and_nothing_is_kept():
    async with serving() as served:
        served.engine.refusal = EngineQueueFull("m", 1)
        for stream in (False, True):
            status, answer = await call(served, "POST", "/v1/responses", wanted(stream=stream))
            assert (status, answer["error"]["code"]) == (429, "queue_full")
        assert len(served.application[STORE]) == 0


async def test_what_fails_later_ends_the_stream_with_an_error_event_and_is_kept_as_failed():
    async with serving() as served:
        events = await streamed(served, piece("Hel"), FootprintExceeded(2, 1, "configured"))
        failed, error = events[-2:]
        kept = await read(served, failed["response"]["id"])
        again = await call(served, "POST", "/v1/responses", wanted(previous_response_id=failed["response"]["id"]))
    for event in events:
        EVENT.validate_python(event, strict=True)
    assert kinds(events)[-4:] == ["content_part.done", "output_item.done", "failed", "error"]
    assert (error["code"], error["sequence_number"]) == ("memory_ceiling", len(events) - 1)
    assert failed["response"]["error"] == {"code": "server_error", "message": error["message"]}
    assert failed["response"]["output"][0]["status"] == "incomplete"
    assert kept == (200, failed["response"])
    assert (again[0], again[1]["error"]["param"]) == (400, "previous_response_id")


async def test_the_package_raises_or_tells_what_failed():
    async with serving() as served, client_of(served) as client:
        async with giving(served, piece("a"), FootprintExceeded(2, 1, "configured")):
            stream = await client.responses.create(model="m", input="hello", stream=True)
            events = [event async for event in stream]
        assert [event.type for event in events[-2:]] == ["response.failed", "error"]
        assert events[-1].code == "memory_ceiling"
        with pytest.raises(openai.NotFoundError) as refused:
            await client.responses.create(model="nobody", input="hello")
        assert refused.value.code == "model_not_found"


async def test_ignored_fields_are_named_in_the_head_of_the_answer():
    async with serving() as served, client_of(served) as client, giving(served, last("x")):
        raw = await client.responses.with_raw_response.create(
            model="m", input="hello", user="u", reasoning={"summary": "auto"}, metadata={"a": "b"}
        )
    assert raw.headers["X-Mlxd-Ignored"] == "user, reasoning.summary"


async def test_tokens_are_counted_as_a_response_would_have_them():
    async with serving() as served, client_of(served) as client:
        counted = await client.responses.input_tokens.count(model="m", input="hello", instructions="Be brief.")
        InputTokenCountResponse.model_validate(counted.model_dump(), strict=True)
        assert counted.input_tokens == len("Be brief.hello>")
        assert served.engine.arrivals.empty()
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.input_tokens.count(model="m", input=[])
        assert refused.value.param == "input"


async def test_a_prompt_that_is_too_long_is_refused_by_its_field():
    async with serving() as served:
        status, answer = await call(served, "POST", "/v1/responses", wanted(input="x" * 200))
    assert (status, answer["error"]["code"], answer["error"]["param"]) == (400, "context_length_exceeded", "input")


async def test_many_streams_at_once_have_answers_of_their_own():
    async with serving() as served:

        async def one(number):
            async with streaming(served, input=f"{number}", headers={"X-Request-Id": "same"}) as events:
                return await events.rest()

        asking = [asyncio.ensure_future(one(number)) for number in range(8)]
        for _ in asking:
            request = await within(served.engine.arrivals.get())
            served.engine.put(request, last("".join(map(chr, request.prompt))))
        answers = await asyncio.gather(*asking)
        texts = {
            events[-1]["response"]["id"]: events[-1]["response"]["output"][0]["content"][0]["text"]
            for events in answers
        }
        assert sorted(texts.values()) == [f"{number}>" for number in range(8)]
        assert sorted(texts) == ["resp_same", *(f"resp_same-{n}" for n in range(2, 9))]
        for name, text in texts.items():
            assert (await read(served, name))[1]["output"][0]["content"][0]["text"] == text


def test_a_response_ends_once_whatever_fails_after_its_end():
    ends = []
    inference = SimpleNamespace(queue_s=0.0, load_s=0.0, ttft_s=lambda timing: timing.ttft_s)
    draft = Draft(ResponseObject(id="resp_1", created_at=1, model="m"), inference, lambda: 2.0, ends.append)
    draft.add(last("x"))
    [event] = draft.fail(describe(RuntimeError("late"), "req-1"))
    draft.abandon()
    assert event.code == "internal_error"
    assert [response.status for response in ends] == ["completed"]
    assert draft.response is ends[0]
