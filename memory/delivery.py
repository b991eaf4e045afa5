"""Runs one asynchronous callback for events without holding up whoever reports them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import structlog

log = structlog.stdlib.get_logger(__name__)

Event = TypeVar("Event")


class Delivery(Generic[Event]):
    """Calls `callback` for one event at a time, in a task of its own; `async with` bounds that task's life.

    An event that arrives while the callback runs waits for it to end; of several that wait, the newest is kept.
    A callback that raises is logged, and the next event is delivered all the same.
    """

    def __init__(self, name: str, callback: Callable[[Event], Awaitable[None]]) -> None:
        self._name = name
        self._callback = callback
        self._next: Event | None = None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Delivery[Event]:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Cancel a callback that still runs, and wait for it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def put(self, event: Event) -> None:
        """Deliver the event, now or as soon as the running callback has ended."""
        self._next = event
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name=f"memory.{self._name}")

    async def _run(self) -> None:
        while (event := self._next) is not None:
            self._next = None
            try:
                await self._callback(event)
            except Exception:
                # the guard outlives whatever its callbacks do
                log.exception("memory.callback_failed", callback=self._name)
