"""The soft mark that holds now: the configured soft limit, or less while others need the memory.

Pure: no clock, no probe. What aborts work is the ceiling, and nothing here moves that.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from mlxd.memory.footprint import Footprint, MemoryLimits
from mlxd.memory.outside import Cause, Mark, StrainLevel

GIB = 1 << 30

HOLD_S = 5.0
"""Seconds that outside must stay better before the mark comes back: reclaim and swap come in bursts of a second."""
STEP_S = 5.0
"""Seconds from one tenth to the next while memory is critical: an eviction and its unload take so long."""
FLOOR_SHARE = 2
"""The configured soft limit over this is what memory pressure alone never takes away: it may be of others' making."""
GRAINS = 100
"""The mark follows what is available in so many steps of the configured limit, so that noise does not move it."""


@dataclass(slots=True)
class _Brake:
    """What the operating system's complaints leave, while it complains."""

    level: StrainLevel = StrainLevel.NONE
    began_bytes: int = 0
    top_bytes: int = 0
    stepped_at: float | None = None

    def press(self, level: StrainLevel, footprint_bytes: int, floor: int, now: float) -> int | None:
        """The most that the footprint may be, None for any.

        1. WARN: no more than when it began, or than the floor: a Mac may warn all day.
        2. CRITICAL: a tenth less than when it began, and a tenth less every STEP_S, down to the floor. A footprint
           that was below the floor may stay where it was. A level that comes and goes makes it no faster.
        """
        if level is not self.level:
            self.level, self.began_bytes, self.top_bytes = level, footprint_bytes, footprint_bytes
        if level is StrainLevel.WARN:
            return max(self.top_bytes, floor)
        if level is StrainLevel.CRITICAL and (self.stepped_at is None or now - self.stepped_at >= STEP_S):
            self.stepped_at = now
            self.top_bytes = max(self.top_bytes - self.began_bytes // 10, min(self.began_bytes, floor))
        return None if level is StrainLevel.NONE else self.top_bytes


@dataclass(frozen=True, slots=True)
class _Better:
    """A window in which the mark could have been higher: when it began, and the lowest that it could have been."""

    since: float
    worst: Mark


class SoftMark:
    """Follows the world outside: down at once, up again only after HOLD_S in which it was better all the time.

    Then the mark goes to the worst of that time, and a new window begins. `machine_counts` says whether the
    machine's available memory means something: not on macOS, which compresses and swaps long before it is used up,
    so there the pressure level alone rules.
    Not for several threads at once.
    """

    def __init__(self, *, machine_counts: bool = sys.platform != "darwin") -> None:
        self._machine_counts = machine_counts
        self._brake = _Brake()
        self._held: Mark | None = None
        self._better: _Better | None = None

    def update(self, limits: MemoryLimits, footprint: Footprint, now: float) -> Mark:
        """The mark after this measurement; `now` is seconds on any clock that does not go back.

        Never above `limits.soft_bytes`, and exactly that when nothing outside is in the way.
        """
        configured = limits.soft_bytes
        target = self._target(configured, footprint, now)
        mark = configured if self._held is None else min(self._held.bytes, configured)
        if target.bytes <= mark:
            self._better = None
            self._hold(target, configured)
        else:
            self._await_return(target, configured, now)
        return self._held or Mark(configured)

    def _await_return(self, target: Mark, configured: int, now: float) -> None:
        better = self._better or _Better(now, target)
        better = _Better(better.since, min(better.worst, target, key=lambda mark: mark.bytes))
        if now - better.since >= HOLD_S:
            self._hold(better.worst, configured)
            better = _Better(now, target)
        self._better = better

    def _hold(self, mark: Mark, configured: int) -> None:
        self._held = mark if mark.bytes < configured else None

    def _target(self, configured: int, footprint: Footprint, now: float) -> Mark:
        """What the mark would be without regard to what it was: the lowest of all that has a say."""
        strain = footprint.strain
        marks = [Mark(configured)]
        top = self._brake.press(strain.level, footprint.bytes, configured // FLOOR_SHARE, now)
        if top is not None:
            marks.append(Mark(top, Cause.STRAIN, strain.told))
        if self._machine_counts:
            margin = min(footprint.machine_total // 16, GIB)
            marks.append(Mark(_within_reach(footprint, footprint.machine_available, margin), Cause.MACHINE))
        if footprint.cgroup_available is not None:
            margin = (footprint.cgroup_limit or 0) // 16
            marks.append(Mark(_within_reach(footprint, footprint.cgroup_available, margin), Cause.CGROUP))
        lowest = min(marks, key=lambda mark: mark.bytes)
        return _in_steps(lowest, configured) if lowest.cause in (Cause.MACHINE, Cause.CGROUP) else lowest


def _within_reach(footprint: Footprint, available: int, margin: int) -> int:
    """The footprint that others leave room for, less a margin for them to grow into.

    MLX's buffer cache stays in: it is ours, in the footprint and not in what is available, and whoever compares
    with the mark decides whether it counts as used.
    """
    return max(0, footprint.bytes + available - margin)


def _in_steps(mark: Mark, configured: int) -> Mark:
    grain = max(1, configured // GRAINS)
    return Mark(mark.bytes // grain * grain, mark.cause, mark.detail)
