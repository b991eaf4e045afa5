"""The steps by which memory is won back, from gentle to hard, and how far up they were climbed."""

from __future__ import annotations

import enum
from collections.abc import Callable


class Rung(enum.IntEnum):
    """In the order in which they are taken. A single request that cannot fit is refused whatever the rung is."""

    NONE = 0
    CLEAR_CACHE = 1
    TRIM_PREFIXES = 2
    EVICT_IDLE = 3
    HOLD_PREFILLS = 4
    SLOW_PREFILLS = 5
    ABORT_ALL = 6

    @property
    def label(self) -> str:
        """Its name in logs and metrics."""
        return self.name.lower()


class Ladder:
    """One climb for each time that memory is short. `on_rung` is told of each rung once in a climb, and of NONE when
    memory is there again. `climbs` counts those that have ended.
    """

    def __init__(self, on_rung: Callable[[Rung], None] = lambda _: None) -> None:
        self.rung = Rung.NONE
        self.climbs = 0
        self._taken: set[Rung] = set()
        self._on_rung = on_rung

    def take(self, rung: Rung) -> bool:
        """Stand on a rung; False when this climb has taken it before."""
        if rung in self._taken:
            return False
        self._taken.add(rung)
        self.rung = max(self._taken)
        self._on_rung(rung)
        return True

    def leave(self) -> bool:
        """Memory is there again: let go of all, and end the climb; False when no rung was taken."""
        self.climbs += 1
        if not self._taken:
            return False
        self._taken.clear()
        self.rung = Rung.NONE
        self._on_rung(Rung.NONE)
        return True
