"""Work that can be stopped while it runs Python: templates and tokenizers are programs that come with a model."""

from __future__ import annotations

import ctypes
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

T = TypeVar("T")

# Seconds for which a thread waits for more. To start one takes half a millisecond, in which its starter waits.
LINGER = 10.0


class Stopped(BaseException):
    """Raised inside work that is given up. No Exception: a template's own handlers must not catch it."""


class StoppableWork(Generic[T]):
    """One piece of work; see StoppableThreads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._works = self._stopped = False
        self._thread: int | None = None

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called: its thread may still meet what that raised."""
        with self._lock:
            return self._stopped

    def stop(self) -> None:
        """Raise Stopped in the work as soon as it runs Python code; nothing when it has ended."""
        # The lock keeps the thread in its work: before it and after it nobody would catch what is raised.
        with self._lock:
            self._stopped = True
            if self._works and self._thread is not None:
                raised = ctypes.py_object(Stopped)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), raised)

    def outcome(self, work: Callable[[], T]) -> Future[T]:
        """Do it, on the thread that calls; what came of it."""
        result: Future[T] = Future()
        try:
            result.set_result(self._done(work))
        except BaseException as error:  # noqa: BLE001 - handed over whole
            result.set_exception(error)
        try:
            return result
        finally:
            # an error knows this frame, and would be kept by what it came in, with all that it met on its way
            del result

    def _done(self, work: Callable[[], T]) -> T:
        try:
            with self._lock:
                if self._stopped:
                    raise Stopped
                self._thread = threading.get_ident()
                self._works = True
            return work()
        finally:
            with self._lock:
                self._works = False


class StoppableThreads:
    """Runs each work on a thread that has nothing else to do meanwhile. Threads are used again, unless their work was
    stopped, and end when they were not for LINGER seconds. For any thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._idle: list[_Thread] = []

    def start(self, work: Callable[[], T], on_end: Callable[[Future[T]], None]) -> StoppableWork[T]:
        """Begin with the work, behind which `on_end` is called on its thread with what came of it.

        Raises RuntimeError when no thread can be started.
        """
        running: StoppableWork[T] = StoppableWork()
        with self._lock:
            thread = self._idle.pop() if self._idle else None
        if thread is None:
            thread = _Thread(self)
            threading.Thread(target=thread.main, name=self._name, daemon=True).start()
        thread.work.put((running, work, on_end))
        return running

    def rests(self, thread: _Thread) -> None:
        """The thread may be used again."""
        with self._lock:
            self._idle.append(thread)

    def leaves(self, thread: _Thread) -> bool:
        """Whether a thread that wants to end may: not with work on its way to it."""
        with self._lock:
            if thread not in self._idle:
                return False
            self._idle.remove(thread)
            return True


class _Thread:
    """The inside of one thread."""

    def __init__(self, threads: StoppableThreads) -> None:
        self.work: queue.SimpleQueue[tuple[StoppableWork[Any], Callable[[], Any], Callable[[Future[Any]], None]]] = (
            queue.SimpleQueue()
        )
        self._threads = threads

    def main(self) -> None:
        """Work until stopped, or until nothing comes."""
        while True:
            try:
                running, work, on_end = self.work.get(timeout=LINGER)
            except queue.Empty:
                if self._threads.leaves(self):
                    return
                continue
            result = running.outcome(work)
            stopped = running.stopped
            if not stopped:
                self._threads.rests(self)  # first: whoever is told of the end may have more
            try:
                on_end(result)
            finally:
                # what is told of the end may know the work, and what came of it
                del running, work, on_end, result
            if stopped:
                return
