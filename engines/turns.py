"""Loads beside engines at work. On one processor both want the same cores and the same memory bandwidth."""

from __future__ import annotations

import threading
import time

# Seconds that a load works at a stretch: short ones cost both sides more.
STRETCH = 0.1
# Seconds for which it then steps aside for each second that it has worked, while anybody else does. An answer that
# meets a load takes some four times as long on a small machine; with this it takes less than one and a half times.
ASIDE = 2.5
# Seconds without work after which there is none: between two requests of one client there is less.
PAUSE = 0.05


class Turns:
    """How many engines are at work now; shared by all of a pool of lanes, for any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._working = 0
        self._quiet_from = float("-inf")

    def begin(self) -> None:
        """An engine has work; the twin of `end`."""
        with self._changed:
            self._working += 1
            self._changed.notify_all()

    def end(self) -> None:
        """An engine has none any more."""
        with self._changed:
            self._working -= 1
            self._quiet_from = time.monotonic() + PAUSE
            self._changed.notify_all()

    def rest_after(self, worked: float, own: int = 0) -> float:
        """Seconds of rest that are due after so many of work, beside others; 0 when a stretch is not over, or nobody
        but the caller's `own` is at work.
        """
        with self._changed:
            return worked * ASIDE if worked >= STRETCH and self._working > own else 0.0

    def step_aside(self, worked: float, own: int = 0) -> bool:
        """Let those at work go on without a load that has `worked` for so long; until they have finished, at most.

        `own` of those at work are the caller's. False when its stretch is not over yet.
        """
        if worked < STRETCH:
            return False
        until = time.monotonic() + worked * ASIDE
        with self._changed:
            while (now := time.monotonic()) < until and (self._working > own or now < self._quiet_from):
                self._changed.wait(until - now if self._working > own else min(until, self._quiet_from) - now)
        return True
