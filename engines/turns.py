"""Loads beside engines at work. On one processor both want the same cores and the same memory bandwidth."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

# Seconds that a load works at a stretch: short ones cost both sides more.
STRETCH = 0.1
# Seconds for which it then steps aside for each second that it has worked, while anybody else does. An answer that
# meets a load takes some four times as long on a small machine; with this it takes less than one and a half times.
ASIDE = 2.5
# Seconds without work after which there is none: between two requests of one client there is less.
PAUSE = 0.05


class Turns:
    """How many engines are at work now; shared by all of a pool of lanes, for any thread.

    `watchers` are told, on the thread of whoever begins or ends, that it is another number now.
    """

    def __init__(self) -> None:
        self.watchers: set[Callable[[], None]] = set()
        self._changed = threading.Condition()
        self._working = 0
        self._quiet_from = float("-inf")

    @property
    def working(self) -> int:
        """Engines that are at work."""
        return self._working

    def begin(self) -> None:
        """An engine has work; the twin of `end`."""
        with self._changed:
            self._working += 1
            self._changed.notify_all()
        self._tell()

    def end(self) -> None:
        """An engine has none any more."""
        with self._changed:
            self._working -= 1
            self._quiet_from = time.monotonic() + PAUSE
            self._changed.notify_all()
        self._tell()

    def step_aside(self, worked: float) -> bool:
        """Let those at work go on without a load that has `worked` for so long; until they have finished, at most.

        False when its stretch is not over yet.
        """
        if worked < STRETCH:
            return False
        self.rest(time.monotonic() + worked * ASIDE)
        return True

    def rest(self, until: float, own: int = 0, patience: float = math.inf) -> bool:
        """Wait until that time, or until nobody but the caller's `own` is at work, but no more than `patience` seconds;
        whether the rest is over.
        """
        give_up = min(until, time.monotonic() + patience)
        with self._changed:
            while (now := time.monotonic()) < give_up and self._others_work(now, own):
                self._changed.wait((give_up if self._working > own else min(give_up, self._quiet_from)) - now)
            return now >= until or not self._others_work(now, own)

    def _tell(self) -> None:
        for watcher in list(self.watchers):
            watcher()

    def _others_work(self, now: float, own: int) -> bool:
        return self._working > own or now < self._quiet_from
