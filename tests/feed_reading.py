"""Reads the feed of a served daemon as a client does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import aiohttp
from daemon_process import Api

from mlxd.daemon.cli.sse import Comment, SseParser


class Reading:
    """One open stream: `next` gives name and data of each event; comments are kept apart."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response
        self.comments: list[str] = []
        self._parser = SseParser()
        self._events: list[tuple[str, dict]] = []

    async def next(self) -> tuple[str, dict]:
        """The next event. Raises EOFError at the end of the stream."""
        async with asyncio.timeout(20):
            while not self._events:
                await self._read()
        return self._events.pop(0)

    async def until(self, name: str, **wanted: object) -> list[tuple[str, dict]]:
        """Events up to the first one of this name whose object has these values."""
        seen = []
        while True:
            seen.append(await self.next())
            kind, data = seen[-1]
            if kind == name and wanted.items() <= data[name].items():
                return seen

    async def comment(self) -> str:
        """Wait for a comment."""
        async with asyncio.timeout(20):
            while not self.comments:
                await self._read()
        return self.comments.pop(0)

    async def _read(self) -> None:
        chunk = await self.response.content.readany()
        if not chunk:
            raise EOFError
        for event in self._parser.feed(chunk):
            if isinstance(event, Comment):
                self.comments.append(event.text)
            else:
                self._events.append((event.event, json.loads(event.data)))


@asynccontextmanager
async def reading(url: str, since: int | None = None, **headers: str) -> AsyncIterator[Reading]:
    """Open the feed of the daemon at this URL."""
    path = "/admin/events" + ("" if since is None else f"?since={since}")
    async with aiohttp.ClientSession() as http, http.get(url + path, headers=headers) as response:
        assert response.status == 200, await response.text()
        yield Reading(response)


def numbers(events: Iterable[tuple[str, dict]]) -> list[int]:
    return [data["seq"] for _, data in events]


async def follow(api: Api) -> None:
    """Read the feed for ever, and hold it to its numbers."""
    number, expected = 0, None
    async with api.get_stream("/admin/events") as response:
        async for line in response.content:
            if line.startswith(b"id: "):
                number = int(line.removeprefix(b"id: "))
            if line.startswith(b"event: "):
                assert line == b"event: snapshot\n" or number == expected, (line, number, expected)
                expected = number + 1
    raise AssertionError("the feed ended while the daemon ran")
