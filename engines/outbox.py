"""The way from a lane to the event loop: events in order, one wake-up however many there are."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

E = TypeVar("E")


class Outbox(Generic[E]):
    """`post` on any one thread, `receive` is called on the event loop, in order.

    A wake-up costs tens of microseconds, so none is sent while one is under way.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, receive: Callable[[E], None]) -> None:
        self._loop = loop
        self._receive = receive
        self._events: deque[E] = deque()
        self._wake_pending = False

    def post(self, event: E) -> None:
        """Queue an event and wake the event loop if it does not know yet."""
        self._events.append(event)
        if not self._wake_pending and not self._loop.is_closed():
            self._wake_pending = True
            self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        # Cleared before draining: an event posted after the last look sends a wake-up of its own.
        self._wake_pending = False
        while self._events:
            self._receive(self._events.popleft())
