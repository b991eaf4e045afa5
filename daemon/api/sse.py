"""Server-sent events: framing, heartbeats for streams that wait, and what happens when the client is gone."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncGenerator, Iterable
from typing import Any, Final, Generic, TypeVar

import msgspec
from aiohttp import web
from msgspec import Struct

T = TypeVar("T")

# Seconds for which a client may leave a full socket unread before it counts as gone.
WRITE_TIMEOUT = 120.0

# A write of fewer bytes into an empty socket buffer never waits, so it needs no timer.
_NEVER_WAITS = 16_384

SSE = "text/event-stream; charset=utf-8"


class Heartbeat(enum.Enum):
    """Stands in a stream for a silence of one interval."""

    BEAT = enum.auto()


HEARTBEAT: Final = Heartbeat.BEAT


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


class EventStream:
    """One stream to one client, of events unless `content_type` says else. The status line goes out with what is sent
    first.

    Writing waits for the client to read; it raises ConnectionResetError when the client is gone, which a client
    that reads nothing for WRITE_TIMEOUT counts as.
    """

    def __init__(self, request: web.Request, content_type: str = SSE) -> None:
        self._request = request
        self.response = web.StreamResponse(
            headers={
                "Content-Type": content_type,
                "Cache-Control": "no-cache, no-transform",
                "X-Accel-Buffering": "no",
            }
        )

    @property
    def started(self) -> bool:
        """Whether the status line is out, so that an error can no longer be an HTTP error."""
        return self.response.prepared

    async def send(self, events: Iterable[Any]) -> None:
        """Send events as JSON, in one write."""
        await self.write(b"".join(frame(event) for event in events))

    async def comment(self, text: str) -> None:
        """Send a line that clients skip and proxies count as life."""
        await self.write(comment(text))

    async def write(self, data: bytes) -> None:
        """Send what is framed already."""
        if not self.started:
            await self.response.prepare(self._request)
        transport = self._request.transport
        if transport is not None and transport.get_write_buffer_size() == 0 and len(data) < _NEVER_WAITS:
            await self.response.write(data)
            return
        try:
            async with asyncio.timeout(WRITE_TIMEOUT):
                await self.response.write(data)
        except TimeoutError:
            if transport is not None:
                transport.abort()
            raise ConnectionResetError("the client does not read its stream") from None


class _Slot(Generic[T]):
    """Hands items from one task to another, one at a time; `beat` turns True when none came for an interval."""

    def __init__(self, interval: float | None) -> None:
        self.changed = asyncio.Event()
        self.beat = False
        self._taken = asyncio.Event()
        self._items: list[T] = []
        self._interval = interval
        self._loop = asyncio.get_running_loop()
        self._quiet_since = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._arm()

    async def put(self, item: T) -> None:
        self._taken.clear()
        self._items.append(item)
        self.changed.set()
        await self._taken.wait()

    def take(self) -> list[T]:
        items, self._items = self._items, []
        self.beat = False
        self._quiet_since = self._loop.time()
        self.changed.clear()
        self._taken.set()
        return items

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        # one timer that is moved when it fires, not with every item
        if self._interval is not None:
            self._timer = self._loop.call_at(self._quiet_since + self._interval, self._look)

    def _look(self) -> None:
        assert self._interval is not None, "there is a timer only with an interval"
        if self._loop.time() >= self._quiet_since + self._interval:
            self.beat = True
            self._quiet_since = self._loop.time()
            self.changed.set()
        self._arm()


async def with_heartbeat(
    source: AsyncGenerator[T, None], interval: float | None
) -> AsyncGenerator[T | Heartbeat, None]:
    """The items of `source`, and a HEARTBEAT whenever none has come for `interval` seconds (None for never).

    `source` runs in one task of its own from first to last, and waits until an item is taken. Closing this
    generator ends that task and closes `source`.
    """
    slot = _Slot[T](interval)
    pump = asyncio.create_task(_pump(source, slot))
    pump.add_done_callback(lambda _: slot.changed.set())
    try:
        while not pump.done() or slot.changed.is_set():
            await slot.changed.wait()
            beat = slot.beat
            items = slot.take()
            for item in items:
                yield item
            if beat and not items:
                yield HEARTBEAT
        await pump
    finally:
        slot.close()
        pump.cancel()
        await asyncio.wait({pump})
        if not pump.cancelled():
            pump.exception()  # seen, even if the reader left before it could be raised


async def _pump(source: AsyncGenerator[T, None], slot: _Slot[T]) -> None:
    try:
        async for item in source:
            await slot.put(item)
    finally:
        await source.aclose()
