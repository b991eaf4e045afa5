"""Signals, taken on a thread of their own: they count while the event loop is stuck, and so does the end of a stop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

import structlog

from mlxd.daemon.cli.failures import Exit
from mlxd.daemon.process_end import leave

log = structlog.stdlib.get_logger(__name__)

_STOPS = (signal.SIGTERM, signal.SIGINT)
_TAKEN = (*_STOPS, signal.SIGHUP)
# Stands among the numbers of signals for a stop that nobody asked for by one.
_BEGUN = 0


class StopSignals:
    """Entered on the main thread, on its running event loop.

    1. The first SIGTERM or SIGINT sets `stop`. The second ends the process at once.
    2. From a stop on the process has `patience()` seconds; then it is ended, whatever it waits for. Before that
       `on_overdue` is called on the thread of the signals, and has a few seconds.
    3. SIGHUP calls `on_reload`, on the event loop.
    """

    def __init__(
        self, on_reload: Callable[[], None], patience: Callable[[], float], on_overdue: Callable[[float], object]
    ) -> None:
        self.stop = asyncio.Event()
        self._on_reload = on_reload
        self._patience = patience
        self._on_overdue = on_overdue
        self._loop = asyncio.get_running_loop()
        self._ear, self._mouth = socket.socketpair()
        self._signalled = False
        self._deadline: float | None = None

    def __enter__(self) -> Self:
        self._mouth.setblocking(False)
        self._before: dict[signal.Signals, Any] = {number: signal.signal(number, _note) for number in _TAKEN}
        self._wakeup = signal.set_wakeup_fd(self._mouth.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._main, name="signals", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._mouth.close()

    def begin(self) -> None:
        """Stop without a signal."""
        self.stop.set()
        self._mouth.send(bytes([_BEGUN]))

    def _main(self) -> None:
        with self._ear:
            while numbers := self._hear():
                for number in numbers:
                    self._take(number)

    def _hear(self) -> bytes:
        """The numbers of signals that have come, nothing when the other end is closed."""
        self._ear.settimeout(None if self._deadline is None else max(0.001, self._deadline - time.monotonic()))
        try:
            return self._ear.recv(4096)
        except TimeoutError:
            leave(Exit.FAILED, lambda: self._on_overdue(self._patience()))

    def _take(self, number: int) -> None:
        if number == _BEGUN:
            self._begin()
        elif number == signal.SIGHUP:
            self._post(self._on_reload)
        elif number in _STOPS:
            self._stop(signal.Signals(number).name)

    def _stop(self, name: str) -> None:
        if self._signalled:
            leave(Exit.FAILED, lambda: log.warning("daemon.exit_now", signal=name))
        self._signalled = True
        self._begin()
        self._post(lambda: self._announce(name))

    def _announce(self, name: str) -> None:
        # not on the thread, which a log that is stuck would keep from the second signal
        log.info("daemon.signal", signal=name)
        self.stop.set()

    def _begin(self) -> None:
        if self._deadline is None:
            self._deadline = time.monotonic() + self._patience()

    def _post(self, call: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop has ended
            self._loop.call_soon_threadsafe(call)


def _note(_number: int, _frame: FrameType | None) -> None:
    """The number is written to the socket already."""
