"""Loads beside engines at work. On one processor both want the same cores and the same memory bandwidth."""

from __future__ import annotations

import threading

# Seconds that a load works at a stretch: short ones cost both sides more.
STRETCH = 0.2
# Seconds for which it then steps aside for each second that it has worked, while anybody else does. An answer that
# meets a load takes some four times as long on a small machine; with this it takes less than one and a half times.
ASIDE = 2.5


class Turns:
    """How many engines are at work now; shared by all of a pool of lanes, for any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._working = 0

    def begin(self) -> None:
        """An engine has work; the twin of `end`."""
        with self._changed:
            self._working += 1

    def end(self) -> None:
        """An engine has none any more."""
        with self._changed:
            self._working -= 1
            self._changed.notify_all()

    def step_aside(self, worked: float) -> bool:
        """Let those at work go on without a load that has `worked` for so long; until they have finished, at most.

        False when its stretch is not over yet.
        """
        if worked < STRETCH:
            return False
        with self._changed:
            self._changed.wait_for(lambda: self._working == 0, timeout=worked * ASIDE)
        return True
