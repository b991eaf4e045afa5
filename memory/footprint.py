"""The measured and the permitted: plain frozen numbers, all in bytes."""

from __future__ import annotations

import enum
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Footprint:
    """What this process and its children use now, and what the machine has. Bytes.

    `bytes` is the kernel's own number. The MLX counters are of this process only and 0 before MLX is loaded.
    `cgroup_limit` is the lowest limit of the process's cgroups, None when nothing limits it.
    """

    bytes: int
    mlx_active: int
    mlx_cache: int
    machine_total: int
    machine_available: int
    cgroup_limit: int | None = None

    @property
    def reclaimable(self) -> int:
        """Bytes of the footprint that MLX's buffer cache holds and gives back when it is cleared."""
        return max(0, min(self.mlx_cache, self.bytes))


class Pressure(enum.StrEnum):
    """Where a footprint stands between the limits."""

    OK = "ok"
    SOFT = "soft"
    CEILING = "ceiling"


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """The resolved limits in bytes; `limit` names what makes the ceiling what it is."""

    ceiling_bytes: int
    soft_bytes: int
    limit: str

    def pressure(self, footprint_bytes: int) -> Pressure:
        """A footprint equal to a limit is still within it."""
        if footprint_bytes > self.ceiling_bytes:
            return Pressure.CEILING
        if footprint_bytes > self.soft_bytes:
            return Pressure.SOFT
        return Pressure.OK


@dataclass(frozen=True, slots=True)
class Reading:
    """One assessed sample; `at` is seconds on the guard's clock."""

    footprint: Footprint
    pressure: Pressure
    at: float
