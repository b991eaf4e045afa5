"""The measured and the permitted: plain frozen numbers, all in bytes."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from mlxd.memory.outside import CALM, Mark, Strain

SOFT_SIZE = "memory.soft"
"""What makes the soft limit when it is configured as a size."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """What this process and its children use now, and what the machine has. Bytes.

    `bytes` is the kernel's own number. The MLX counters are of this process only and 0 before MLX is loaded;
    `mlx_peak` is the most that was active since it was last reset, which measuring a step does.
    `cgroup_limit` is the lowest limit of the process's cgroups, None when nothing limits it; `cgroup_available` is
    the least that any of them has left, file pages that can be dropped included.
    `strain` is how short of memory the operating system says it is.
    """

    bytes: int
    mlx_active: int
    mlx_cache: int
    machine_total: int
    machine_available: int
    cgroup_limit: int | None = None
    mlx_peak: int = 0
    cgroup_available: int | None = None
    strain: Strain = CALM

    @property
    def reclaimable(self) -> int:
        """Bytes of the footprint that MLX's buffer cache holds and gives back when it is cleared."""
        return max(0, min(self.mlx_cache, self.bytes))

    @property
    def in_use(self) -> int:
        """Bytes of the footprint but for those."""
        return self.bytes - self.reclaimable


class Pressure(enum.StrEnum):
    """Where a footprint stands between the limits."""

    OK = "ok"
    SOFT = "soft"
    CEILING = "ceiling"


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """The resolved limits in bytes; `limit` names what makes the ceiling what it is.

    `soft_is_size` when the soft limit is configured as a size of its own, not as a share of the ceiling.
    """

    ceiling_bytes: int
    soft_bytes: int
    limit: str
    soft_is_size: bool = False

    @property
    def soft_limit(self) -> str:
        """The name of what makes the soft limit what it is."""
        return SOFT_SIZE if self.soft_is_size else self.limit

    def pressure(self, footprint_bytes: int) -> Pressure:
        """A footprint equal to a limit is still within it."""
        if footprint_bytes > self.ceiling_bytes:
            return Pressure.CEILING
        if footprint_bytes > self.soft_bytes:
            return Pressure.SOFT
        return Pressure.OK


@dataclass(frozen=True, slots=True)
class Reading:
    """One assessed sample; `at` is seconds on the guard's clock, `mark` the soft mark that it was held against."""

    footprint: Footprint
    pressure: Pressure
    at: float
    mark: Mark
