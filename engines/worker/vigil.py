"""Notices a worker that is silent for too long: stopped, or stuck in native code that holds the GIL."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

# Seconds between two looks.
LOOK = 1.0
# Seconds for which a process may be silent at least while it starts: Python and what it imports are read from the disk.
START = 30.0


class Vigil:
    """`patience` gives the seconds of silence that are too many, None for never; `on_silent` is then called with them,
    once.
    """

    def __init__(self, patience: Callable[[], float | None], on_silent: Callable[[float], None]) -> None:
        self._patience = patience
        self._on_silent = on_silent
        self._loop = asyncio.get_running_loop()
        self._heard = self._due = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._has_spoken = False

    def start(self) -> None:
        """Look from now on."""
        self._heard = self._loop.time()
        self._again()

    def heard(self) -> None:
        """The worker has said something."""
        self._heard = self._loop.time()
        self._has_spoken = True

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _again(self) -> None:
        self._due = self._loop.time() + LOOK
        self._timer = self._loop.call_at(self._due, self._look)

    def _look(self) -> None:
        now = self._loop.time()
        if now - self._due > LOOK:
            # it was this process that stood still: what the worker said meanwhile is not read yet
            self._heard = now
        silent, patience = now - self._heard, self._patience()
        if patience is not None and silent > (patience if self._has_spoken else max(patience, START)):
            self._on_silent(silent)
            return
        self._again()
