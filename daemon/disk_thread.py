"""Work that reads disks, on a thread that nobody has to wait for: a read from a lost mount may never return."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 60.0
"""Seconds after which a read of configuration or folders counts as stuck."""


class DiskStuck(Exception):
    """A read has not ended for so many seconds; until it does, no other one begins."""

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"reading the configuration and the model folders has not ended for {seconds:.0f} s; "
            "is a disk or a network mount lost?"
        )


class DiskThread:
    """Runs one read after the other, each on a thread of its own that does not keep the process from ending."""

    def __init__(self, patience: float = PATIENCE) -> None:
        self._patience = patience
        self._idle = asyncio.Event()
        self._idle.set()
        self._stuck = False

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` gives or raises, off the event loop, once an earlier read has ended.

        Cancelled, it is left to end by itself. Raises DiskStuck when all that takes too long, and at once while a read
        that took too long has not ended.
        """
        if self._stuck:
            raise DiskStuck(self._patience)
        scope = asyncio.timeout(self._patience)
        try:
            async with scope:
                # all who wait are woken, and the first of them may have begun
                while not self._idle.is_set():
                    await self._idle.wait()
                return await self._start(work)
        except TimeoutError:
            if not scope.expired():
                raise  # the disk's own
            self._stuck = not self._idle.is_set()
            raise DiskStuck(self._patience) from None

    def _start(self, work: Callable[[], T]) -> asyncio.Future[T]:
        self._idle.clear()
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[T] = loop.create_future()

        def settle(report: Callable[[], None]) -> None:
            self._idle.set()
            self._stuck = False
            if not outcome.done():
                report()

        def main() -> None:
            report = _outcome(work, outcome)
            # the event loop may be gone by now
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(settle, report)

        threading.Thread(target=main, name="disk", daemon=True).start()
        return outcome


def _outcome(work: Callable[[], T], outcome: asyncio.Future[T]) -> Callable[[], None]:
    try:
        result = work()
    except BaseException as error:  # noqa: BLE001 - handed over whole
        failure = error
        return lambda: outcome.set_exception(failure)
    return lambda: outcome.set_result(result)
