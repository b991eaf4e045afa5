"""Streams that show what happens until the client leaves, its key is taken away, or the daemon stops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import structlog
from aiohttp import web

from mlxd.daemon.api.caller import caller_of
from mlxd.daemon.api.queries import whole_number
from mlxd.daemon.api.refusals import InvalidField
from mlxd.daemon.api.services import services_of
from mlxd.daemon.api.sse import EventStream

log = structlog.stdlib.get_logger(__name__)

# Seconds that a client has to take the last events when the daemon stops.
LAST_WORDS = 1.0


class Reader(Protocol):
    """One reader's place in something that goes on."""

    on_close: Callable[[], None]

    @property
    def ended(self) -> bool:
        """Whether nothing will follow."""

    def take(self) -> bytes:
        """The next events, framed, or nothing."""

    async def wait(self) -> None:
        """Return when there may be something to take, or nothing will follow."""


async def follow(request: web.Request, reader: Reader) -> web.StreamResponse:
    """Send what the reader has, as it comes."""
    services, caller = services_of(request), caller_of(request)
    stream = EventStream(request)
    interval = services.settings.server.keepalive_interval
    try:
        await _send_until_closed(stream, reader, interval, lambda: services.keys.holds(caller))
    except ConnectionResetError:
        log.info("stream.client_gone")
    except TimeoutError:
        log.info("stream.client_gone")
        if request.transport is not None:
            request.transport.abort()
    return stream.response


def since_of(request: web.Request) -> int | None:
    """The number that the client saw last. Raises InvalidField for one in the query that is none.

    A client that comes back by itself calls the same URL, so that its header is the newer of the two.
    """
    seen = whole_number(request.headers.get("Last-Event-ID", ""))
    text = request.query.get("since", "")
    if seen is not None or not text:
        return seen
    number = whole_number(text)
    if number is None:
        raise InvalidField("expected the number of the last event that was seen, or nothing", "since")
    return number


async def _send_until_closed(
    stream: EventStream, reader: Reader, interval: float | None, is_allowed: Callable[[], bool]
) -> None:
    """Raises ConnectionResetError, and TimeoutError when the client does not take the last events in time."""
    async with asyncio.timeout(None) as limit:
        reader.on_close = lambda: limit.reschedule(asyncio.get_running_loop().time() + LAST_WORDS)
        await _send_new(stream, reader)
        if not stream.started:
            await stream.comment("nothing new")
        while not reader.ended:
            is_quiet = await _quiet(reader, interval)
            if not is_allowed():
                return
            if is_quiet:
                await stream.comment("waiting")
            else:
                await _send_new(stream, reader)


async def _send_new(stream: EventStream, reader: Reader) -> None:
    while data := reader.take():
        await stream.write(data)


async def _quiet(reader: Reader, interval: float | None) -> bool:
    """Wait for news; whether none came for `interval` seconds."""
    try:
        async with asyncio.timeout(interval):
            await reader.wait()
    except TimeoutError:
        return True
    return False
