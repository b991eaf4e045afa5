"""Threads on which image processors run. Some compute with MLX, which keeps a stream, and a thread of its own, for
every thread that ever did: so these are few, and live as long as the lanes.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

T = TypeVar("T")

THREADS = 2
# Seconds after which whoever waits looks up, in case it was given up meanwhile.
_LOOK_UP = 0.5


class ImageThreads:
    """Runs work for any thread, on threads that start with the first of it."""

    def __init__(self, threads: int = THREADS) -> None:
        self._count = threads
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()

    def run(self, work: Callable[[], T]) -> T:
        """The result of `work`. Raises what it raises."""
        self._start()
        result: Future[T] = Future()
        self._work.put((work, result))
        try:
            while not result.done():
                wait([result], _LOOK_UP)
            return result.result()
        finally:
            # an error knows this frame, and would be kept by what it came in, with all that it met on its way
            del result

    def close(self, timeout: float) -> bool:
        """End the threads once they are done; False when one is not within `timeout` seconds. Idempotent."""
        until = time.monotonic() + timeout
        threads, self._threads = self._threads, []
        for _ in threads:
            self._work.put(None)
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)

    def _start(self) -> None:
        with self._lock:
            if self._threads:
                return
            for number in range(self._count):
                thread = threading.Thread(target=self._main, name=f"images-{number}", daemon=True)
                self._threads.append(thread)
                thread.start()

    def _main(self) -> None:
        while (item := self._work.get()) is not None:
            work, result = item
            try:
                result.set_result(work())
            except BaseException as error:  # noqa: BLE001 - handed over whole
                result.set_exception(error)
            del work, result, item
        # the last act: a thread that ends with its streams aborts the process when that ends
        clear = getattr(sys.modules.get("mlx.core"), "clear_streams", None)
        if clear is not None:
            clear()
