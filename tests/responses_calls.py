"""Ways to ask a served application for responses, and to read their streams."""

import asyncio
import json
from contextlib import asynccontextmanager

import aiohttp
from api_calls import until, within

from mlxd.daemon.api.responses.store import STORE

RESPONSES = "/v1/responses"
TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}


def wanted(**fields):
    return {"model": "m", "input": "hello", **fields}


def user(text):
    return {"role": "user", "content": text}


async def give(served, *script):
    """Give the next request of the engine these outputs, each when the one before was read; the request."""
    request = await within(served.engine.arrivals.get())
    live = served.application[STORE].live(f"resp_{request.id}", None)
    for item in script:
        before = live.snapshot()
        served.engine.put(request, item)
        await until(lambda before=before: live.ended.is_set() or live.snapshot() != before)
    return request


@asynccontextmanager
async def giving(served, *script):
    """Give the next request of the engine these outputs while the block asks for them."""
    task = asyncio.ensure_future(give(served, *script))
    yield task
    await task


async def made(served, *script, **fields):
    """A response as JSON."""
    async with giving(served, *script):
        status, answer = await call(served, "POST", RESPONSES, wanted(**fields))
    assert status == 200, answer
    return answer


async def call(served, method, path, body=None, **headers):
    """Status and JSON of any call."""
    url = served.url + path
    async with aiohttp.ClientSession() as http, http.request(method, url, json=body, headers=headers) as answer:
        return answer.status, await answer.json()


async def read(served, name, **headers):
    return await call(served, "GET", f"{RESPONSES}/{name}", **headers)


class Events:
    """A stream's events, one by one; the head of the answer comes with the first."""

    def __init__(self, asking):
        self._asking = asking
        self.comments = []

    async def next(self):
        """The next event, None at the end of the stream."""
        answer = await within(asyncio.shield(self._asking))
        assert answer.status == 200
        data = None
        while line := (await within(answer.content.readline())).decode().rstrip("\n"):
            if line.startswith(": "):
                self.comments.append(line)
            elif line.startswith("data: "):
                data = json.loads(line.removeprefix("data: "))
            elif line.startswith("event: "):
                name = line.removeprefix("event: ")
        if data is not None:
            assert data["type"] == name
            return data
        return None if answer.content.at_eof() else await self.next()

    async def until(self, kind):
        """The next event of a kind."""
        while (event := await self.next())["type"] != kind:
            pass
        return event

    async def rest(self):
        """All events that are left."""
        events = []
        while (event := await self.next()) is not None:
            events.append(event)
        return events


@asynccontextmanager
async def streaming(served, **fields):
    """A stream, to be read while it lives."""
    url, headers = served.url + RESPONSES, fields.pop("headers", {})
    async with aiohttp.ClientSession() as http:
        asking = asyncio.ensure_future(http.post(url, json=wanted(stream=True, **fields), headers=headers))
        yield Events(asking)
        (await asking).close()


async def streamed(served, *script, **fields):
    """All events of a stream."""
    async with giving(served, *script), streaming(served, **fields) as events:
        return await events.rest()
