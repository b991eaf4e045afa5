"""Loads beside engines at work. On one processor both want the same cores and the same memory bandwidth."""

from __future__ import annotations

import threading

# Seconds for which a load steps aside for each second that it has worked, while anybody else does. A step that meets
# a load takes some four times as long on a small machine; with this it takes less than one and a half times.
ASIDE = 3.0


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

    def step_aside(self, worked: float) -> None:
        """Let those at work go on without a load that has `worked` for so many seconds; at once when there are none."""
        with self._changed:
            self._changed.wait_for(lambda: self._working == 0, timeout=worked * ASIDE)
