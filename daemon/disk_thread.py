"""Work that reads disks, on a thread that nobody has to wait for: a read from a lost mount may never return."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def on_disk_thread(work: Callable[[], T]) -> T:
    """What `work` gives or raises, off the event loop. A stuck thread does not keep the process from ending.

    Cancelled, it is left to end by itself.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def settle(report: Callable[[], None]) -> None:
        if not outcome.done():
            report()

    def main() -> None:
        report = _outcome(work, outcome)
        # the event loop may be gone by now
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, report)

    threading.Thread(target=main, name="disk", daemon=True).start()
    return await outcome


def _outcome(work: Callable[[], T], outcome: asyncio.Future[T]) -> Callable[[], None]:
    try:
        result = work()
    except BaseException as error:  # noqa: BLE001 - handed over whole
        failure = error
        return lambda: outcome.set_exception(failure)
    return lambda: outcome.set_result(result)
