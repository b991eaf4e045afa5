"""Threads that can be stopped while they run Python: templates and tokenizers are programs that come with a model."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class Stopped(BaseException):
    """Raised inside a thread that is given up. No Exception: a template's own handlers must not catch it."""


class StoppableThread(Generic[T]):
    """Runs `work` in a thread of its own, which then calls `on_end` with what came of it.

    Raises RuntimeError when no thread can be started.
    """

    def __init__(self, work: Callable[[], T], on_end: Callable[[Future[T]], None], name: str) -> None:
        self._lock = threading.Lock()
        self._works = self._stopped = False
        # not kept here: what is told of the end may know this object, and what came of the work
        self._thread = threading.Thread(target=self._main, args=(work, on_end), name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Raise Stopped in the thread as soon as it runs Python code; nothing when its work has ended."""
        # The lock keeps the thread in its work: before it and after it nobody would catch what is raised.
        with self._lock:
            self._stopped = True
            if self._works and self._thread.ident is not None:
                raised = ctypes.py_object(Stopped)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread.ident), raised)

    def _main(self, work: Callable[[], T], on_end: Callable[[Future[T]], None]) -> None:
        result: Future[T] = Future()
        try:
            result.set_result(self._done(work))
        except BaseException as error:  # noqa: BLE001 - handed over whole
            result.set_exception(error)
        try:
            on_end(result)
        finally:
            # an error knows this frame, and would be kept by what it came in, with all that it met on its way
            del result, on_end

    def _done(self, work: Callable[[], T]) -> T:
        try:
            with self._lock:
                if self._stopped:
                    raise Stopped
                self._works = True
            return work()
        finally:
            with self._lock:
                self._works = False
