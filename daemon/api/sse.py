"""Server-sent events: framing, signs of life for streams that wait, and what happens when the client is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
from aiohttp import web
from msgspec import Struct

# Seconds for which a client may leave a full socket unread before it counts as gone.
WRITE_TIMEOUT = 120.0

# A write of fewer bytes into an empty socket buffer never waits, so it needs no timer.
_NEVER_WAITS = 16_384

SSE = "text/event-stream; charset=utf-8"


def frame(event: Any) -> bytes:
    """One event with JSON in it."""
    return b"data: " + msgspec.json.encode(event) + b"\n\n"


def named_frame(event: Struct) -> bytes:
    """One event under its own name, which is the tag of its type."""
    name = str(event.__struct_config__.tag).encode()
    return b"event: " + name + b"\ndata: " + msgspec.json.encode(event) + b"\n\n"


def comment(text: str) -> bytes:
    """A line that clients skip and proxies count as life."""
    return f": {text}\n\n".encode()


class _Response(web.StreamResponse):
    """One whose head goes out with the first bytes of its body, which follow at once: each send costs as much as making
    a chunk.
    """

    _send_headers_immediately = False


_BEGUN = web.RequestKey("begun", _Response)


class EventStream:
    """One stream to one client, of events unless `content_type` says else. The status line goes out with what is sent
    first.

    Writing waits for the client to read; it raises ConnectionResetError when the client is gone, which a client
    that reads nothing for WRITE_TIMEOUT counts as.
    """

    def __init__(self, request: web.Request, content_type: str = SSE) -> None:
        self._request = request
        self._loop = asyncio.get_running_loop()
        self._last_write = self._loop.time()
        self._writing = False
        self.response = request.get(_BEGUN) or _Response(
            headers={
                "Content-Type": content_type,
                "Cache-Control": "no-cache, no-transform",
                "X-Accel-Buffering": "no",
            }
        )

    def pass_on(self) -> None:
        """Whoever makes another stream for the same request goes on with this one."""
        self._request[_BEGUN] = self.response

    @property
    def started(self) -> bool:
        """Whether the status line is out, so that an error can no longer be an HTTP error."""
        return self.response.prepared

    @property
    def quiet_since(self) -> float:
        """When anything was written last, or this was made; never longer ago than now while a write waits for its
        client. On the event loop's clock.
        """
        return self._loop.time() if self._writing else self._last_write

    async def send(self, events: Iterable[Any]) -> None:
        """Send events as JSON, in one write."""
        await self.write(b"".join(frame(event) for event in events))

    async def comment(self, text: str) -> None:
        """Send a line that clients skip and proxies count as life."""
        await self.write(comment(text))

    async def write(self, data: bytes) -> None:
        """Send what is framed already."""
        await self._send(data, last=False)

    async def end(self, data: bytes) -> None:
        """Send what is framed already, and the end of the body with it."""
        await self._send(data, last=True)

    async def _send(self, data: bytes, *, last: bool) -> None:
        self._last_write = self._loop.time()
        if not self.started:
            await self.response.prepare(self._request)  # suspends nowhere, so that no other write comes between
        send = self.response.write_eof if last else self.response.write
        transport = self._request.transport
        if transport is not None and transport.get_write_buffer_size() == 0 and len(data) < _NEVER_WAITS:
            await send(data)
            return
        self._writing = True
        try:
            async with asyncio.timeout(WRITE_TIMEOUT):
                await send(data)
        except TimeoutError:
            if transport is not None:
                transport.abort()
            raise ConnectionResetError("the client does not read its stream") from None
        finally:
            self._writing = False


@asynccontextmanager
async def kept_alive(stream: EventStream, interval: float | None, beat: Callable[[], bytes]) -> AsyncIterator[None]:
    """While inside, write what `beat` gives whenever nothing was written for `interval` seconds (None for never).

    It is a task beside the stream, woken once an interval: what is written pays nothing for it.
    """
    beats = asyncio.create_task(_beats(stream, interval, beat)) if interval is not None else None
    try:
        yield
    finally:
        if beats is not None:
            beats.cancel()
            await asyncio.wait({beats})
    if beats is not None and not beats.cancelled():
        beats.result()


async def _beats(stream: EventStream, interval: float, beat: Callable[[], bytes]) -> None:
    loop = asyncio.get_running_loop()
    due = loop.time() + interval
    # a client that is gone ends the handler: see `handler_cancellation`
    with suppress(ConnectionResetError):
        while True:
            await asyncio.sleep(due - loop.time())
            due = stream.quiet_since + interval
            if due > loop.time():
                continue
            if data := beat():
                await stream.write(data)
            due = loop.time() + interval
