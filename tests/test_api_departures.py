"""Clients that leave, and requests that are cancelled: nothing stays behind."""

import asyncio
import json
import threading

import aiohttp
import pytest
from api_calls import CHAT, QUICK, TEXT, ask, hello, until, within
from api_fakes import events, last, piece, post, serving


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_before_the_first_token_ends_its_request(stream):
    async with serving() as served:
        _, writer = await post(served.port, CHAT, hello(stream=stream), X_Request_Id="gone")
        await served.engine.arrivals.get()
        writer.transport.abort()
        assert await within(served.engine.departures.get()) == ("gone", False)
        assert served.registry.leases == 0


async def test_a_client_that_leaves_in_the_middle_of_a_stream_ends_its_request():
    async with serving() as served:
        reader, writer = await post(served.port, CHAT, hello(stream=True))
        request = await served.engine.arrivals.get()
        served.engine.put(request, piece("Hel"))
        await reader.readuntil(b"Hel")
        writer.transport.abort()
        assert await within(served.engine.departures.get()) == (request.id, False)
        assert served.registry.leases == 0


async def test_a_client_that_leaves_in_the_middle_of_a_whole_answer_ends_its_request():
    async with serving() as served:
        _, writer = await post(served.port, CHAT, hello())
        request = await served.engine.arrivals.get()
        served.engine.put(request, piece("Hel"))
        writer.transport.abort()
        assert await within(served.engine.departures.get()) == (request.id, False)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_while_its_model_loads_stops_waiting(stream):
    async with serving(server=QUICK) as served:
        served.registry.open.clear()
        _, writer = await post(served.port, CHAT, hello(stream=stream), X_Request_Id="gone")
        await served.registry.waits.get()
        writer.transport.abort()
        assert await within(served.registry.departures.get()) == "gone"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_while_its_prompt_is_tokenised_gives_the_lease_back(stream):
    async with serving() as served:
        served.engine.tokenizer.gate = threading.Event()
        _, writer = await post(served.port, CHAT, hello(stream=stream))
        await until(lambda: served.engine.tokenizer.chats)
        assert served.registry.leases == 1
        writer.transport.abort()
        await until(lambda: served.registry.leases == 0)
        served.engine.tokenizer.gate.set()
        assert served.engine.arrivals.empty()


async def test_a_stream_leaves_no_task_behind():
    async with serving() as served:
        before = {task.get_coro().__qualname__ for task in asyncio.all_tasks()}
        reader, writer = await post(served.port, CHAT, hello(stream=True))
        request = await served.engine.arrivals.get()
        served.engine.put(request, piece("Hel"))
        await reader.readuntil(b"Hel")
        writer.transport.abort()
        await within(served.engine.departures.get())
        await until(lambda: len(served.services.running) == 0)
        await until(lambda: {task.get_coro().__qualname__ for task in asyncio.all_tasks()} <= before)


async def cancel(served, request_id):
    async with aiohttp.ClientSession() as http:
        answer = await http.delete(f"{served.url}/v1/requests/{request_id}")
        return answer.status, await answer.json()


@pytest.mark.parametrize("name", ["r-1", "chatcmpl-r-1"])
async def test_a_cancelled_request_keeps_what_it_generated(name):
    async with serving() as served:
        asking = asyncio.ensure_future(ask(served, hello(), **{"X-Request-Id": "r-1"}))
        request = await served.engine.arrivals.get()
        served.engine.put(request, piece("Hel"))
        assert await cancel(served, name) == (200, {"id": name, "cancelled": True})
        status, text = await asking
        answer = json.loads(text)
        assert status == 200
        assert answer["choices"][0]["message"]["content"] == "Hel"
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert answer["mlxd"]["cancelled"] is True
        assert answer["usage"]["prompt_tokens"] == 6
        status, body = await cancel(served, "r-1")
        assert (status, body["error"]["code"]) == (404, "request_not_found")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_waits_for_its_model_can_be_cancelled(stream):
    async with serving() as served:
        served.registry.open.clear()
        asking = asyncio.ensure_future(ask(served, hello(stream=stream), **{"X-Request-Id": "r-1"}))
        await served.registry.waits.get()
        assert (await cancel(served, "r-1"))[0] == 200
        status, text = await asking
        assert status == 200
        final = events(text)[-2] if stream else json.loads(text)
        assert final["choices"][0]["finish_reason"] == "stop"
        assert final["mlxd"]["cancelled"] is True


async def test_a_request_that_is_being_tokenised_can_be_cancelled():
    async with serving() as served:
        served.engine.tokenizer.gate = threading.Event()
        asking = asyncio.ensure_future(ask(served, hello(), **{"X-Request-Id": "r-1"}))
        await until(lambda: served.engine.tokenizer.chats)
        assert (await cancel(served, "r-1"))[0] == 200
        assert json.loads((await asking)[1])["mlxd"]["cancelled"] is True
        served.engine.tokenizer.gate.set()
        assert served.engine.arrivals.empty()


async def test_two_requests_of_one_id_are_two_requests():
    async with serving() as served:
        asking = [asyncio.ensure_future(ask(served, hello(), **{"X-Request-Id": "same"})) for _ in range(2)]
        requests = [await served.engine.arrivals.get() for _ in range(2)]
        assert [request.id for request in requests] == ["same", "same-2"]
        for request in requests:
            served.engine.put(request, last(request.id))
        texts = [json.loads((await each)[1]) for each in asking]
        assert {text["id"] for text in texts} == {"chatcmpl-same", "chatcmpl-same-2"}


async def test_live_requests_are_listed_wherever_they_are():
    async with serving() as served:
        running, registry = served.services.running, served.registry
        asking = [asyncio.ensure_future(ask(served, hello(), **{"X-Request-Id": "a"}))]
        request = await served.engine.arrivals.get()
        served.engine.tokenizer.gate = threading.Event()
        asking.append(asyncio.ensure_future(ask(served, {**hello()}, **{"X-Request-Id": "b"})))
        await until(lambda: len(served.engine.tokenizer.chats) == 2)
        registry.open.clear()
        asking.append(asyncio.ensure_future(ask(served, {"model": "m", "prompt": "x"}, TEXT, **{"X-Request-Id": "c"})))
        await until(registry.waiting)
        first, second, third = running.views(registry.waiting())
        assert (first.id, first.model, first.api, first.state) == ("a", "m", "chat", "decoding")
        assert (first.prompt_tokens, first.completion_tokens, first.cached_tokens) == (6, 2, 1)
        assert (first.decode_tps, first.position, first.waiting_for) == (10.0, None, None)
        assert (second.id, second.state, second.position, second.waiting_for) == ("b", "tokenizing", None, None)
        assert (third.id, third.api, third.state) == ("c", "completions", "queued")
        assert (third.position, third.waiting_for) == (1, "model")
        assert first.age_s >= third.age_s >= 0
        served.engine.put(request, last(""))
        for name in ("b", "c"):
            assert running.cancel(name)
        served.engine.tokenizer.gate.set()
        await asyncio.gather(*asking)
        assert running.views(()) == []
