"""When a stream of readings calls for action: pure, without clock, probe or callbacks."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mlxd.memory.footprint import MemoryLimits, Pressure


@dataclass(frozen=True, slots=True)
class SoftEvent:
    """The footprint is above the soft mark: trim, evict, hold. Bytes; `pressure` may already be CEILING.

    `soft_bytes` is the mark that held, which may be below the configured soft limit.
    """

    footprint_bytes: int
    soft_bytes: int
    limit: str
    pressure: Pressure


@dataclass(frozen=True, slots=True)
class CeilingEvent:
    """The footprint crossed the ceiling: abort all requests. Bytes; `limit` names what makes the ceiling."""

    footprint_bytes: int
    ceiling_bytes: int
    limit: str


@dataclass(frozen=True, slots=True)
class RecoveredEvent:
    """The footprint is back well within the soft mark that held. Bytes."""

    footprint_bytes: int
    soft_bytes: int


MemoryEvent = SoftEvent | CeilingEvent | RecoveredEvent

RECOVERED_PERCENT = 97
"""A footprint that was above the soft mark is back at so much of it: the growth of one step does not reach it again."""

WORSE_PERCENT = 2
"""Of the configured soft limit: a footprint that is so much further above it than it was told is told anew."""


class _Return:
    """Whether a footprint has come back within a mark: well below it, or just within it for `settle` seconds."""

    def __init__(self, settle: float) -> None:
        self._settle = settle
        self._since: float | None = None

    def observe(self, footprint_bytes: int, soft_bytes: int, now: float) -> bool:
        if footprint_bytes > soft_bytes:
            self._since = None
            return False
        if self._since is None:
            self._since = now
        return footprint_bytes * 100 <= soft_bytes * RECOVERED_PERCENT or now - self._since >= self._settle


class CrossingDetector:
    """Turns readings into events.

    1. CeilingEvent: two readings in a row above the ceiling, or one more than 5 % above it. Once; the next one
       only after the footprint came back within the configured soft limit.
    2. SoftEvent: on going above the soft mark, then at most every `soft_repeat` seconds while the footprint is above
       it, so that eviction goes on until it is below. Sooner each time that it is further above than it was told:
       others who fill the machine do not wait for that interval.
    3. RecoveredEvent: once when the footprint came back within the soft mark.

    To come back is to be at or below 97 %, or to be within for `settle` seconds without interruption: a footprint
    that sways around a limit is one crossing, and one that stays just below does not leave the ceiling unguarded.
    1 goes by configured limits alone: the mark moves with what others do, and an abort must not wait for them.
    """

    def __init__(self, soft_repeat: float = 5.0, settle: float = 10.0) -> None:
        self._soft_repeat = soft_repeat
        self._above = 0
        self._aborted = False
        self._soft_at: float | None = None
        self._told_over = 0
        self._below_limit = _Return(settle)
        self._below_mark = _Return(settle)

    @property
    def is_short(self) -> bool:
        """Whether a SoftEvent was given that no RecoveredEvent has followed yet."""
        return self._soft_at is not None

    def observe(self, footprint_bytes: int, limits: MemoryLimits, soft_bytes: int, now: float) -> list[MemoryEvent]:
        """The events of one reading, the most urgent first.

        `limits` are the configured ones, `soft_bytes` is the soft mark that holds now; `now` is seconds on any clock
        that does not go back.
        """
        pressure = replace(limits, soft_bytes=soft_bytes).pressure(footprint_bytes)
        self._above = self._above + 1 if pressure is Pressure.CEILING else 0
        if self._below_limit.observe(footprint_bytes, limits.soft_bytes, now):
            self._aborted = False
        back = self._below_mark.observe(footprint_bytes, soft_bytes, now)
        events: list[MemoryEvent] = []
        if self._ceiling_crossed(footprint_bytes, limits):
            # it gets the footprint below the mark, too
            self._aborted, self._told_over = True, footprint_bytes - soft_bytes
            events.append(CeilingEvent(footprint_bytes, limits.ceiling_bytes, limits.limit))
        if pressure is not Pressure.OK and self._soft_is_due(footprint_bytes, soft_bytes, limits, now):
            self._soft_at, self._told_over = now, footprint_bytes - soft_bytes
            events.append(SoftEvent(footprint_bytes, soft_bytes, limits.limit, pressure))
        if back and self._soft_at is not None:
            self._soft_at = None
            events.append(RecoveredEvent(footprint_bytes, soft_bytes))
        return events

    def _soft_is_due(self, footprint_bytes: int, soft_bytes: int, limits: MemoryLimits, now: float) -> bool:
        if self._soft_at is None or now - self._soft_at >= self._soft_repeat:
            return True
        # a mark that others push down goes on falling, and does not sway with what our requests take
        sway = 0 if soft_bytes < limits.soft_bytes else limits.soft_bytes * WORSE_PERCENT // 100
        return footprint_bytes - soft_bytes > self._told_over + sway

    def _ceiling_crossed(self, footprint_bytes: int, limits: MemoryLimits) -> bool:
        far_above = footprint_bytes * 20 > limits.ceiling_bytes * 21
        return not self._aborted and (far_above or self._above > 1)
