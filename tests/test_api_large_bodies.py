"""Large bodies are read and checked beside the event loop, a few at a time; small ones do not wait for them."""

import asyncio
import gzip
import json
import threading
from contextlib import AsyncExitStack

import aiohttp
import pytest
from aiohttp import web
from api_calls import within
from api_fakes import last, serving
from facades import FACADES, question

from mlxd.daemon.api.body import read_as
from mlxd.daemon.api.refusals import InvalidField
from mlxd.daemon.api.services import BODIES_AT_A_TIME

JSON = {"Content-Type": "application/json"}
SMALL = b'{"a": 1}'
LARGE = SMALL + b" " * 100_000


async def read(request):
    """Where a body was read."""
    thread = await read_as(request, lambda body: threading.get_ident() if body == {"a": 1} else 0)
    return web.json_response(thread)


async def refuse(request):
    def refuses(body):
        raise InvalidField("a: no", "a")

    await read_as(request, refuses)


EXTRA = [web.post("/read", read), web.post("/refuse", refuse)]


@pytest.mark.parametrize(
    ("body", "encoding", "beside"),
    [(LARGE, None, True), (gzip.compress(LARGE), "gzip", True), (SMALL, None, False)],
)
async def test_what_may_take_a_while_is_read_on_a_thread(body, encoding, beside):
    headers = JSON | ({"Content-Encoding": encoding} if encoding else {})
    async with (
        serving(extra=EXTRA) as served,
        aiohttp.ClientSession(served.url) as http,
        http.post("/read", data=body, headers=headers) as answer,
    ):
        thread = await answer.json()
    assert thread
    assert (thread != threading.get_ident()) is beside


async def test_what_is_refused_on_a_thread_is_refused_as_ever():
    async with (
        serving(extra=EXTRA) as served,
        aiohttp.ClientSession(served.url) as http,
        http.post("/refuse", data=LARGE, headers=JSON) as answer,
    ):
        assert (answer.status, (await answer.json())["error"]["param"]) == (400, "a")


@pytest.mark.parametrize("facade", FACADES.values(), ids=list(FACADES))
async def test_a_large_body_waits_for_its_turn_and_a_small_one_does_not(facade):
    body = {"model": "m", "stream": False, **facade.body(question("hello", max_tokens=9))}
    body.pop("stream_options", None)
    small = json.dumps(body).encode()

    async def asked(data):
        async with http.post(facade.path, data=data, headers=JSON) as answer:
            return answer.status

    async with serving() as served, aiohttp.ClientSession(served.url) as http, AsyncExitStack() as turns:
        for _ in range(BODIES_AT_A_TIME):
            await turns.enter_async_context(served.services.bodies)
        large = asyncio.ensure_future(asked(small + b" " * 100_000))
        quick = asyncio.ensure_future(asked(small))
        served.engine.put(await within(served.engine.arrivals.get()), last("a"))
        assert await within(quick) == 200
        assert not large.done()
        await turns.aclose()
        served.engine.put(await within(served.engine.arrivals.get()), last("a"))
        assert await within(large) == 200
