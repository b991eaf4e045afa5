"""Responses that are kept: going on from them, reading, cancelling and deleting them, alone and in races."""

import asyncio
import gc
import weakref
from dataclasses import replace
from datetime import UTC, datetime

import aiohttp
import openai
import pytest
from api_calls import QUICK, client_of, until, within
from api_fakes import last, piece, post, serving
from msgspec import structs
from openai.types.responses import Response
from openai.types.responses.response_item_list import ResponseItemList
from responses_calls import RESPONSES, TOOL, call, give, giving, made, read, streamed, streaming, user, wanted

from mlxd.daemon.api.responses.parsing import parse_create
from mlxd.daemon.api.responses.store import STORE, ResponseStore
from mlxd.daemon.keys import ApiKey, Scope, hash_of
from mlxd.engines.types import ToolCall

CALL = ToolCall("weather", '{"city":"Paris"}', "call9xyz1")


async def turn(served, text, said, previous=None, **fields):
    """One more turn; its response."""
    return await made(served, last(said), input=text, previous_response_id=previous, **fields)


def shown(served):
    """The messages that the template was shown last."""
    return served.engine.tokenizer.chats[-1][0]


async def refused(served, **fields):
    status, answer = await call(served, "POST", RESPONSES, wanted(**fields))
    return status, answer["error"]["code"], answer["error"]["param"]


@pytest.mark.parametrize("quick", [1_000_000, 0])
async def test_a_turn_goes_on_from_all_turns_before_it_but_not_from_their_instructions(quick, monkeypatch):
    monkeypatch.setattr("mlxd.daemon.api.responses.context._QUICK_BYTES", quick)  # 0 reads beside the event loop
    async with serving() as served:
        first = await turn(served, "a", "b", instructions="Be brief.")
        second = await turn(served, "c", "d", first["id"])
        await turn(served, "e", "f", second["id"], instructions="Be long.")
        system = {"role": "system", "content": "Be long."}
        said = [{"role": "assistant", "content": text} for text in "bd"]
        assert shown(served) == [system, user("a"), said[0], user("c"), said[1], user("e")]


async def test_the_results_of_calls_go_on_from_the_response_that_made_them():
    script = [
        structs.replace(piece(""), reasoning="Hm"),
        piece("I look."),
        structs.replace(last(""), tool_calls=(CALL,)),
    ]
    async with serving() as served:
        first = await made(served, *script, tools=[TOOL], input="weather?")
        result = {"type": "function_call_output", "call_id": first["output"][2]["call_id"], "output": "sunny"}
        await made(served, last("Sunny."), previous_response_id=first["id"], input=[result], tools=[TOOL])
        messages = shown(served)
        assert messages[1]["tool_calls"][0]["function"] == {"name": "weather", "arguments": {"city": "Paris"}}
        assert (messages[1]["content"], messages[1]["reasoning_content"]) == ("I look.", "Hm")
        assert messages[2] == {"role": "tool", "content": "sunny", "tool_call_id": "call9xyz1"}
        sent_whole = [user("weather?"), *first["output"], result]
        await made(served, last("Sunny."), input=sent_whole, tools=[TOOL])
        assert shown(served) == messages


async def test_what_is_said_after_a_call_does_not_part_it_from_its_result():
    script = [structs.replace(piece("a"), tool_calls=(CALL,)), last("b")]
    async with serving() as served:
        first = await made(served, *script, tools=[TOOL])
        result = {"type": "function_call_output", "call_id": "call9xyz1", "output": "sunny"}
        await made(served, last("c"), previous_response_id=first["id"], input=[result], tools=[TOOL])
        assert [message["role"] for message in shown(served)] == ["user", "assistant", "tool"]
        assert shown(served)[1]["content"] == "ab"


async def test_a_response_may_be_asked_to_go_on_without_more_input():
    async with serving() as served:
        first = await turn(served, "a", "b")
        body = {"model": "m", "previous_response_id": first["id"]}
        async with giving(served, last("c")):
            status, _ = await call(served, "POST", RESPONSES, body)
        assert status == 200
        assert [message["role"] for message in shown(served)] == ["user", "assistant"]


async def test_a_reference_stands_for_an_item_of_a_kept_response():
    async with serving() as served:
        first = await made(served, structs.replace(last("Hm."), tool_calls=(CALL,)), tools=[TOOL])
        message, made_call = first["output"]
        result = {"type": "function_call_output", "call_id": made_call["call_id"], "output": "sunny"}
        references = [{"id": message["id"]}, {"type": "item_reference", "id": made_call["id"]}]
        second = await made(served, last("x"), input=[user("hello"), *references, result])
        assert [message["role"] for message in shown(served)] == ["user", "assistant", "tool"]
        listed = (await read(served, f"{second['id']}/input_items?order=asc"))[1]["data"]
        assert [item["id"] for item in listed[1:3]] == [message["id"], made_call["id"]]
        await call(served, "DELETE", f"{RESPONSES}/{first['id']}")
        assert await refused(served, input=["x", *references][1:]) == (404, "response_not_found", "input[0].id")


async def test_a_chain_of_50_turns_keeps_each_turn_once():
    async with serving() as served:
        served.engine.config = replace(served.engine.config, context_length=10_000)
        previous, sizes = None, []
        for number in range(50):
            response = await turn(served, f"{number:03}", "ok", previous)
            previous = response["id"]
            sizes.append(served.application[STORE].bytes)
        assert len(shown(served)) == 99
        assert shown(served)[0] == user("000")
        assert sizes[-1] - sizes[-2] < 1.2 * (sizes[1] - sizes[0])


async def test_items_are_referred_to_once_in_a_request():
    async with serving() as served:
        first = await turn(served, "a", "b")
        reference = {"id": first["output"][0]["id"]}
        assert await refused(served, input=[reference, user("x"), reference]) == (400, "invalid_request", "input[2].id")


async def test_a_conversation_of_many_items_is_the_same_as_one_of_few():
    async with serving() as served:
        served.engine.config = replace(served.engine.config, context_length=10_000)
        call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": f'{{"a": "{"x" * 60_000}"}}'}
        many = [user(f"{number}") for number in range(600)]
        assert parse_create(wanted(input=many))[1].weight == 600 < parse_create(wanted(input=[call]))[1].weight
        first = await turn(served, many, "b")
        reference = {"id": first["output"][0]["id"]}
        await turn(served, [reference, user("c")], "d", first["id"])
        assert shown(served) == [*many, *2 * [{"role": "assistant", "content": "b"}], user("c")]


async def test_deleting_the_middle_of_a_conversation_breaks_nothing_after_it():
    async with serving() as served, client_of(served) as client:
        first = await turn(served, "a", "b")
        second = await turn(served, "c", "d", first["id"])
        third = await turn(served, "e", "f", second["id"])
        for each in (first, second):
            await client.responses.delete(each["id"])
        await turn(served, "g", "h", third["id"])
        assert [message["content"] for message in shown(served)] == list("abcdefg")
        assert await refused(served, previous_response_id=second["id"]) == (
            404,
            "response_not_found",
            "previous_response_id",
        )
        with pytest.raises(openai.NotFoundError) as missing:
            await client.responses.delete(first["id"])
        assert missing.value.code == "response_not_found"


async def test_a_kept_response_reads_as_it_was_answered():
    async with serving() as served, client_of(served) as client:
        whole = await turn(served, "a", "b", metadata={"k": "v"})
        events = await streamed(served, piece("x"), last("y"))
        for response in (whole, events[-1]["response"]):
            assert (await read(served, response["id"]))[1] == response
            assert (await client.responses.retrieve(response["id"])).to_dict()["output"] == response["output"]
        assert (await client.responses.cancel(whole["id"])).status == "completed"


async def test_nothing_is_kept_that_is_not_to_be_stored():
    async with serving() as served:
        whole = await turn(served, "a", "b", store=False)
        events = await streamed(served, last("y"), store=False)
        for name in (whole["id"], events[-1]["response"]["id"]):
            assert (await read(served, name))[0] == 404
            assert (await refused(served, previous_response_id=name))[0] == 404
        assert (served.application[STORE].bytes, len(served.application[STORE])) == (0, 0)
        assert whole["store"] is False


async def test_the_items_that_went_in_are_listed_page_by_page():
    async with serving() as served, client_of(served) as client:
        first = await turn(served, "a", "b")
        items = [user("c"), {"role": "assistant", "content": "d", "id": "mine"}, user("e")]
        second = await made(served, last("f"), input=items, previous_response_id=first["id"])
        listed = [item async for item in client.responses.input_items.list(second["id"], limit=2)]
        assert [item.content[0].text for item in listed] == list("edcba")
        listed = [item async for item in client.responses.input_items.list(second["id"], order="asc", after="mine")]
        assert [item.content[0].text for item in listed] == ["e"]
        status, page = await read(served, f"{second['id']}/input_items?limit=2")
        ResponseItemList.model_validate(page, strict=True)
        assert (status, page["has_more"], page["last_id"]) == (200, True, "mine")
        _, end = await read(served, f"{second['id']}/input_items?after={listed[0].id}&order=asc")
        assert (end["data"], end["has_more"]) == ([], False)


BAD_QUERIES = [
    ("?stream=true", "stream"),
    ("?stream=1", "stream"),
    ("?include_obfuscation=true", "include_obfuscation"),
    ("?starting_after=3", "starting_after"),
    ("?include=web_search_call.results", "include"),
    ("?include[]=x", "include"),
    ("?nonsense=1", "nonsense"),
    ("/input_items?limit=0", "limit"),
    ("/input_items?limit=101", "limit"),
    ("/input_items?limit=-1", "limit"),
    ("/input_items?limit=%D9%A1", "limit"),
    ("/input_items?limit=99999999999999999999", "limit"),
    ("/input_items?order=up", "order"),
    ("/input_items?after=nobody", "after"),
    ("/input_items?before=x", "before"),
    ("/input_items?include=x", "include"),
]


async def test_a_query_that_cannot_be_served_is_refused_by_name():
    async with serving() as served:
        response = await turn(served, "a", "b")
        for query, param in BAD_QUERIES:
            status, answer = await read(served, response["id"] + query)
            assert (status, answer["error"]["param"]) == (400, param), query
        allowed = "?stream=false&include[]=message.output_text.logprobs"
        assert (await read(served, response["id"] + allowed))[0] == 200


NAMES = ("nobody", "..%2F..%2Fetc%2Fpasswd", "%2E%2E", "%00", "x" * 4000, "resp_", "%F0%9F%98%80", "a%2Fb", "{id}")


@pytest.mark.parametrize(
    ("method", "suffix"), [("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")]
)
async def test_an_id_that_is_not_kept_is_not_found(method, suffix):
    async with serving() as served:
        for name in NAMES:
            status, answer = await call(served, method, f"{RESPONSES}/{name}{suffix}")
            assert (status, answer["error"]["code"]) in ((404, "response_not_found"), (404, "not_found")), name


async def test_a_response_in_the_making_can_be_read_and_ended_by_its_id():
    async with serving() as served, client_of(served) as client:
        async with streaming(served) as events:
            name = (await opened(served, events))["response"]["id"]
            status, so_far = await read(served, name)
            Response.model_validate(so_far, strict=True)
            assert (status, so_far["status"], so_far["output"][0]["status"]) == (200, "in_progress", "in_progress")
            assert await refused(served, previous_response_id=name) == (400, "invalid_request", "previous_response_id")
            cancelled = await client.responses.cancel(name)
            final = (await events.rest())[-1]
        assert final["type"] == "response.completed"
        assert (cancelled.status, cancelled.output_text) == ("cancelled", "Hel")
        assert final["response"] == (await read(served, name))[1]
        assert final["response"]["output"][0]["status"] == "incomplete"
        assert final["response"]["mlxd"]["cancelled"] is True
        assert final["response"]["usage"]["output_tokens"] == 3
        await turn(served, "on", "x", name)
        assert [message["content"] for message in shown(served)] == ["hello", "Hel", "on"]


async def opened(served, events):
    """A stream's first event, once its first text has come."""
    request = await within(served.engine.arrivals.get())
    served.engine.put(request, piece("Hel"))
    first = await events.next()
    assert first["type"] == "response.created"
    await events.until("response.output_text.delta")
    return first


async def test_the_stream_helper_of_the_package_accepts_a_cancel():
    async with serving(server=QUICK) as served, client_of(served) as client:
        stream = await client.responses.stream(model="m", input="hello").__aenter__()
        request = await within(served.engine.arrivals.get())
        served.engine.put(request, piece("Hel"))
        async for event in stream:
            if event.type == "response.output_text.delta":
                await client.responses.cancel(f"resp_{request.id}")
        final = await stream.get_final_response()
    assert (final.status, final.output_text) == ("cancelled", "Hel")


@pytest.mark.parametrize("path", ["/v1/responses/{}/cancel", "/v1/requests/{}"])
async def test_a_whole_answer_can_be_ended_from_another_connection(path):
    async with serving() as served:
        asking = asyncio.ensure_future(call(served, "POST", RESPONSES, wanted(), **{"X-Request-Id": "mine"}))
        served.engine.put(await within(served.engine.arrivals.get()), piece("Hel"))
        method = "POST" if path.endswith("cancel") else "DELETE"
        status, answer = await call(served, method, path.format("resp_mine"))
        assert status == 200
        _, response = await within(asking)
        assert (response["status"], response["output"][0]["content"][0]["text"]) == ("cancelled", "Hel")
        if method == "POST":
            assert answer == response
        assert (await read(served, "resp_mine"))[1] == response


async def test_a_response_that_has_ended_is_cancelled_at_once_though_its_reader_is_slow():
    async with serving() as served:
        for store in (True, False):
            name = f"slow{store}"
            _, writer = await post(served.port, RESPONSES, wanted(stream=True, store=store), X_Request_Id=name)
            served.engine.put(await within(served.engine.arrivals.get()), last("x" * 12_000_000))
            live = served.application[STORE].live(f"resp_{name}", None)
            await within(live.ended.wait())
            assert f"resp_{name}" in served.application[STORE]._live
            status, answer = await call(served, "POST", f"{RESPONSES}/resp_{name}/cancel")
            assert (status, answer.get("status")) == ((200, "completed") if store else (404, None))
            writer.transport.abort()


async def test_the_request_of_a_response_can_be_ended_by_the_response_s_id_whatever_else_is_called_so():
    async with serving() as served:
        asked = {"model": "m", "messages": [user("hello")], "stream": True}
        others = [await post(served.port, "/v1/chat/completions", asked, X_Request_Id=taken) for taken in ("x", "x-2")]
        for _ in others:
            await within(served.engine.arrivals.get())
        async with streaming(served, headers={"X-Request-Id": "x"}) as events:
            name = (await opened(served, events))["response"]["id"]
            assert name == "resp_x-3"
            assert (await call(served, "DELETE", f"/v1/requests/{name}"))[0] == 200
            assert (await events.rest())[-1]["response"]["status"] == "cancelled"
        assert sorted(served.engine.live) == ["x", "x-2"]
        for _, writer in others:
            writer.transport.abort()


async def test_a_response_that_has_ended_holds_nothing_of_its_making():
    async with serving() as served, streaming(served) as events:
        name = (await opened(served, events))["response"]["id"]
        held = weakref.ref(served.application[STORE].live(name, None).snapshot)
        gc.disable()
        try:
            served.engine.cancel(name.removeprefix("resp_"))
            await events.rest()
            await until(lambda: len(served.services.running) == 0)
            assert held() is None
        finally:
            gc.enable()


async def test_a_response_that_waits_for_its_model_can_be_ended():
    async with serving(server=QUICK) as served:
        served.registry.open.clear()
        async with streaming(served) as events:
            name = (await events.next())["response"]["id"]
            status, answer = await call(served, "POST", f"{RESPONSES}/{name}/cancel")
            final = (await events.rest())[-1]
    assert (status, answer["status"], answer["output"]) == (200, "cancelled", [])
    assert final["response"] == answer


async def test_deleting_a_response_in_the_making_ends_it_and_keeps_nothing():
    async with serving() as served:
        async with streaming(served) as events:
            name = (await opened(served, events))["response"]["id"]
            assert await call(served, "DELETE", f"{RESPONSES}/{name}") == (
                200,
                {"id": name, "object": "response", "deleted": True},
            )
            assert (await events.rest())[-1]["response"]["status"] == "cancelled"
        assert (await read(served, name))[0] == 404
        assert len(served.application[STORE]) == 0


async def test_a_stream_whose_client_left_is_kept_as_cancelled_with_what_it_had():
    async with serving() as served:
        reader, writer = await post(served.port, RESPONSES, wanted(stream=True), X_Request_Id="left")
        served.engine.put(await within(served.engine.arrivals.get()), piece("Hel"))
        await within(reader.readuntil(b"output_text.delta"))
        writer.transport.abort()
        await within(served.engine.departures.get())
        await until(lambda: served.application[STORE].find("resp_left", None) is not None)
        _, response = await read(served, "resp_left")
        assert (response["status"], response["output"][0]["content"][0]["text"]) == ("cancelled", "Hel")
        assert response["output"][0]["status"] == "incomplete"
        await turn(served, "on", "x", "resp_left")


async def test_a_client_that_leaves_before_its_answer_began_leaves_nothing():
    for stream in (False, True):
        async with serving() as served:
            _, writer = await post(served.port, RESPONSES, wanted(stream=stream), X_Request_Id="left")
            await within(served.engine.arrivals.get())
            writer.transport.abort()
            await within(served.engine.departures.get())
            await until(lambda served=served: served.application[STORE].live("resp_left", None) is None)
            assert len(served.application[STORE]) == 0


async def test_a_response_can_be_gone_on_from_as_soon_as_its_last_event_is_there():
    async with serving() as served:
        previous = None
        for number in range(10):
            async with streaming(served, input=f"{number:02}", previous_response_id=previous) as events:
                task = asyncio.ensure_future(give(served, last("x")))
                final = await events.until("response.completed")
                assert (await read(served, final["response"]["id"]))[1]["status"] == "completed"
                previous = final["response"]["id"]
                await task


async def test_cancels_deletes_and_ends_may_meet_in_any_order():
    async with serving() as served:
        for number in range(12):
            asking = asyncio.ensure_future(call(served, "POST", RESPONSES, wanted(), **{"X-Request-Id": f"r{number}"}))
            request = await within(served.engine.arrivals.get())
            acts = [
                call(served, "POST", f"{RESPONSES}/resp_r{number}/cancel"),
                call(served, "DELETE", f"{RESPONSES}/resp_r{number}"),
                read(served, f"resp_r{number}"),
            ]
            acting = [asyncio.ensure_future(act) for act in acts[number % 3 :] + acts[: number % 3]]
            served.engine.put(request, last("x")) if number % 2 else None
            statuses = {status for status, _ in await asyncio.gather(*acting)}
            status, response = await within(asking)
            assert statuses <= {200, 404}
            assert (status, response["status"]) in ((200, "cancelled"), (200, "completed"))
        assert (served.application[STORE].bytes, len(served.application[STORE])) == (0, 0)


async def test_a_flood_of_responses_stays_inside_its_bounds_and_the_newest_are_there():
    async with serving(responses=ResponseStore(max_responses=10, max_bytes=30_000)) as served:
        names = []
        for number in range(30):
            text = "x" * (1 + 97 * number % 90)
            names.append((await turn(served, text, text, metadata={"k": "v" * 500}))["id"])
            assert served.application[STORE].bytes <= 30_000
            assert len(served.application[STORE]) <= 10
        assert (await read(served, names[-1]))[0] == 200
        assert await refused(served, previous_response_id=names[0]) == (
            404,
            "response_not_found",
            "previous_response_id",
        )


def key(name, *scopes, models=()):
    return ApiKey(name, scopes or (Scope.INFER,), hash_of(f"mlxd-{name}"), datetime.now(UTC), models)


async def test_a_response_is_there_for_its_own_key_and_for_operators_alone():
    keys = (key("me"), key("you"), key("boss", Scope.ADMIN), key("half", Scope.ADMIN, models=("m",)))

    def sent_by(name):
        return {"Authorization": f"Bearer mlxd-{name}"}

    async with serving(keys=keys) as served:
        async with giving(served, last("b")):
            _, response = await call(served, "POST", RESPONSES, wanted(), **sent_by("me"))
        place, item = f"{RESPONSES}/{response['id']}", response["output"][0]["id"]
        calls = [("GET", place), ("POST", f"{place}/cancel"), ("GET", f"{place}/input_items")]
        for name, allowed in (("me", 200), ("boss", 200), ("you", 404), ("half", 404)):
            for method, path in calls:
                assert (await call(served, method, path, **sent_by(name)))[0] == allowed, (name, path)
        for body in (wanted(previous_response_id=response["id"]), wanted(input=[{"id": item}])):
            status, answer = await call(served, "POST", RESPONSES, body, **sent_by("you"))
            assert (status, answer["error"]["code"]) == (404, "response_not_found")
        assert (await call(served, "DELETE", place, **sent_by("you")))[0] == 404
        assert (await call(served, "DELETE", place, **sent_by("me")))[0] == 200


async def test_a_response_in_the_making_is_not_there_for_other_keys():
    async with serving(keys=(key("me"), key("you"))) as served:
        mine, yours = ({"Authorization": f"Bearer mlxd-{name}"} for name in ("me", "you"))
        async with streaming(served, headers=mine) as events:
            name = (await opened(served, events))["response"]["id"]
            for method, path in (("GET", ""), ("POST", "/cancel"), ("DELETE", "")):
                assert (await call(served, method, f"{RESPONSES}/{name}{path}", **yours))[0] == 404
            assert (await call(served, "POST", f"{RESPONSES}/{name}/cancel", **mine))[1]["status"] == "cancelled"
            await events.rest()


async def test_a_cancel_does_not_wait_for_a_client_that_reads_nothing(monkeypatch):
    monkeypatch.setattr("mlxd.daemon.api.responses.kept.CANCEL_PATIENCE", 0.05)
    async with serving() as served:
        _, writer = await post(served.port, RESPONSES, wanted(stream=True), X_Request_Id="stuck")
        request = await within(served.engine.arrivals.get())
        live = served.application[STORE].live("resp_stuck", None)
        for _ in range(12):
            before = live.snapshot()
            served.engine.put(request, piece("x" * 1_000_000))
            await until(
                lambda before=before: live.snapshot() != before or served.engine.live[request.id]._collector._pending
            )
        status, answer = await call(served, "POST", f"{RESPONSES}/resp_stuck/cancel")
        assert (status, answer["status"]) == (200, "in_progress")
        writer.transport.abort()
        await within(live.ended.wait())


async def test_the_store_is_not_a_way_around_the_length_of_a_context():
    async with serving() as served:
        first = await turn(served, "x" * 60, "y" * 60)
        assert await refused(served, previous_response_id=first["id"]) == (400, "context_length_exceeded", "input")
        async with aiohttp.ClientSession() as http:
            body = {"model": "m", "input": "x", "previous_response_id": first["id"]}
            async with http.post(f"{served.url}{RESPONSES}/input_tokens", json=body) as answer:
                assert (await answer.json())["input_tokens"] == 122
