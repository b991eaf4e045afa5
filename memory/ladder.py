"""The steps by which memory is won back, from gentle to hard, and how far up they were climbed."""

from __future__ import annotations

import enum


class Rung(enum.IntEnum):
    """In the order in which they are taken. A single request that cannot fit is refused whatever the rung is."""

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
    """One climb for each time that memory is short. `climbs` counts those that have ended."""

    def __init__(self) -> None:
        self.climbs = 0
        self._taken: set[Rung] = set()

    def take(self, rung: Rung) -> bool:
        """Stand on a rung; False when this climb has taken it before."""
        if rung in self._taken:
            return False
        self._taken.add(rung)
        return True

    def leave(self) -> bool:
        """Memory is there again: let go of all, and end the climb; False when no rung was taken."""
        self.climbs += 1
        taken, self._taken = self._taken, set()
        return bool(taken)
