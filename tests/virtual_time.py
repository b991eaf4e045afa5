"""An event loop on a clock of its own: when nothing is left to do, it is at once as late as the next timer.

Timeouts then take no time and end at the exact moment, and a test waits for what must happen, not for how long that
may take. A test gets such a loop with `pytestmark = pytest.mark.virtual_time`, see conftest.py.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

Result = TypeVar("Result")

# Not 0, so that a moment is never mistaken for none; whole, so that sums of whole seconds are exact.
START = 1000.0


class NothingHappensError(RuntimeError):
    """A test waits, but nothing is ready, no timer is set and no thread works: it would wait for ever."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """`time()` only moves when nothing is ready to run; it stands still while a thread works for the loop."""

    def __init__(self) -> None:
        self._now = START
        self._threads_at_work = 0
        self._settling: list[asyncio.Future[None]] = []
        super().__init__(_Selector(self._wait))

    def time(self) -> float:
        return self._now

    async def settled(self) -> None:
        """Return when nothing is ready to run any more: all that is left waits for a timer or for the test."""
        future = self.create_future()
        self._settling.append(future)
        await future

    def run_in_executor(
        self, executor: Executor | None, func: Callable[..., Result], *args: Any
    ) -> asyncio.Future[Result]:
        self._threads_at_work += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._thread_done)
        return future

    async def shutdown_default_executor(self, *arguments: Any) -> None:
        self._threads_at_work += 1  # it joins them on a thread of its own
        try:
            await super().shutdown_default_executor(*arguments)
        finally:
            self._threads_at_work -= 1

    def _thread_done(self, _: asyncio.Future[Any]) -> None:
        self._threads_at_work -= 1

    def _wait(self, timeout: float | None) -> float | None:
        """The loop would sleep for so long (None for ever); how long the selector really does.

        In order: what is ready is run · threads are waited for · who waits for the loop to settle goes on · the clock
        jumps to the next timer.
        """
        if timeout == 0:
            return 0
        if self._threads_at_work:
            return None
        if self._settling:
            for future in self._settling:
                if not future.done():  # its reader may have been cancelled
                    future.set_result(None)
            self._settling.clear()
            return 0
        if timeout is None:
            raise NothingHappensError("nothing is ready, no timer is set and no thread works: this waits for ever")
        self._now = self._scheduled[0].when()  # the timer that the timeout is for
        return 0


class _Selector(selectors.DefaultSelector):
    """Asks how long to wait; what is readable by now comes before that."""

    def __init__(self, wait: Callable[[float | None], float | None]) -> None:
        super().__init__()
        self._ask = wait

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return super().select(0) or super().select(self._ask(timeout))


def now() -> float:
    """Seconds on the clock of the running loop."""
    return asyncio.get_running_loop().time()


async def settled() -> None:
    """Let everything happen that can happen now."""
    await _loop().settled()


async def passes(seconds: float) -> None:
    """Let so much time pass, with all that is due by then."""
    loop = _loop()
    reached = loop.create_future()
    timer = loop.call_later(seconds, reached.set_result, None)
    try:
        await reached
    finally:
        timer.cancel()
    await loop.settled()


def _loop() -> VirtualLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop), "the test is not marked virtual_time"
    return loop
