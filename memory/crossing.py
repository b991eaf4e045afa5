"""When a stream of readings calls for action: pure, without clock, probe or callbacks."""

from __future__ import annotations

from dataclasses import dataclass

from mlxd.memory.footprint import MemoryLimits, Pressure


@dataclass(frozen=True, slots=True)
class SoftEvent:
    """The footprint is above the soft limit: trim, evict, hold. Bytes; `pressure` may already be CEILING."""

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
    """The footprint is back within the soft limit. Bytes."""

    footprint_bytes: int
    soft_bytes: int


MemoryEvent = SoftEvent | CeilingEvent | RecoveredEvent


class CrossingDetector:
    """Turns readings into events.

    1. CeilingEvent: two readings in a row above the ceiling, or one more than 5 % above it. Once; the next one
       only after a RecoveredEvent.
    2. SoftEvent: on leaving OK, then at most every `soft_repeat` seconds while the footprint stays above soft,
       so that eviction goes on until it is below.
    3. RecoveredEvent: once on coming back to OK.
    """

    def __init__(self, soft_repeat: float = 5.0) -> None:
        self._soft_repeat = soft_repeat
        self._above = 0
        self._aborted = False
        self._soft_at: float | None = None

    def observe(self, footprint_bytes: int, limits: MemoryLimits, now: float) -> list[MemoryEvent]:
        """The events of one reading, the most urgent first; `now` is seconds on any clock that does not go back."""
        pressure = limits.pressure(footprint_bytes)
        if pressure is Pressure.OK:
            return self._recover(footprint_bytes, limits)
        self._above = self._above + 1 if pressure is Pressure.CEILING else 0
        events: list[MemoryEvent] = []
        if self._ceiling_crossed(footprint_bytes, limits):
            self._aborted = True
            events.append(CeilingEvent(footprint_bytes, limits.ceiling_bytes, limits.limit))
        if self._soft_at is None or now - self._soft_at >= self._soft_repeat:
            self._soft_at = now
            events.append(SoftEvent(footprint_bytes, limits.soft_bytes, limits.limit, pressure))
        return events

    def _ceiling_crossed(self, footprint_bytes: int, limits: MemoryLimits) -> bool:
        far_above = footprint_bytes * 20 > limits.ceiling_bytes * 21
        return not self._aborted and (far_above or self._above > 1)

    def _recover(self, footprint_bytes: int, limits: MemoryLimits) -> list[MemoryEvent]:
        under_pressure = self._soft_at is not None
        self._above = 0
        self._aborted = False
        self._soft_at = None
        return [RecoveredEvent(footprint_bytes, limits.soft_bytes)] if under_pressure else []
