"""From configured values and one footprint to the limits that hold: a pure function."""

from __future__ import annotations

from mlxd.memory.footprint import Footprint, MemoryLimits

GIB = 1 << 30

CONFIGURED = "memory.ceiling"
MACHINE = "machine total less reserve"
CGROUP = "cgroup memory.max"
METAL = "Metal recommended working set"
WIRED = "iogpu.wired_limit_mb"


class CeilingTooLow(ValueError):
    """The ceiling leaves nothing to work with: the idle daemon already uses as much. Bytes."""

    def __init__(self, ceiling_bytes: int, footprint_bytes: int, limit: str) -> None:
        super().__init__(
            f"the memory ceiling of {ceiling_bytes} bytes ({limit}) is not above the {footprint_bytes} bytes the idle "
            "daemon uses; raise memory.ceiling"
        )
        self.ceiling_bytes = ceiling_bytes
        self.footprint_bytes = footprint_bytes
        self.limit = limit


class SoftTooLow(ValueError):
    """The soft limit is never reached from above, so no abort could ever count as over. Bytes."""

    def __init__(self, soft_bytes: int, footprint_bytes: int) -> None:
        super().__init__(
            f"the soft memory limit of {soft_bytes} bytes is not above the {footprint_bytes} bytes the idle daemon "
            "uses; raise memory.soft or memory.ceiling"
        )
        self.soft_bytes = soft_bytes
        self.footprint_bytes = footprint_bytes


def machine_reserve(machine_total: int) -> int:
    """Bytes an automatic ceiling leaves to the rest of the machine.

    An eighth, at least 1 GiB and at most 8 GiB (8 GiB machine: 1, 16: 2, 32: 4, 64 and up: 8), but never more
    than half of a very small machine.
    """
    return min(max(machine_total // 8, GIB), 8 * GIB, machine_total // 2)


def cgroup_reserve(cgroup_limit: int) -> int:
    """Bytes an automatic ceiling stays below a cgroup limit: a sixteenth.

    The kernel kills at the limit itself. With a sixteenth even the guard's immediate abort, 5 % over the
    ceiling, comes before that.
    """
    return cgroup_limit // 16


def resolve_limits(
    ceiling: int | float | None,
    soft: int | float,
    footprint: Footprint,
    metal_limit: int | None,
    wired_limit: int | None = None,
) -> MemoryLimits:
    """The limits in bytes. `ceiling` None is automatic, an int is bytes, a float in (0, 1] a share of the machine.

    `soft` is an int of bytes or a float share of the ceiling. `footprint` is the idle daemon's. `wired_limit` is
    iogpu.wired_limit_mb in bytes where it is set; Metal's working set follows it, so it takes its place.
    Raises CeilingTooLow or SoftTooLow when a limit is not above the footprint, ValueError for a value out of range.
    """
    ceiling_bytes, limit = _ceiling(ceiling, footprint, metal_limit, wired_limit)
    if ceiling_bytes <= footprint.bytes:
        raise CeilingTooLow(ceiling_bytes, footprint.bytes, limit)
    soft_bytes = _amount(soft, ceiling_bytes, "memory.soft")
    if soft_bytes > ceiling_bytes:
        raise ValueError(f"memory.soft is {soft_bytes} bytes, above the ceiling of {ceiling_bytes} bytes ({limit})")
    if soft_bytes <= footprint.bytes:
        raise SoftTooLow(soft_bytes, footprint.bytes)
    return MemoryLimits(ceiling_bytes, soft_bytes, limit)


def _ceiling(
    ceiling: int | float | None, footprint: Footprint, metal_limit: int | None, wired_limit: int | None
) -> tuple[int, str]:
    if ceiling is not None:
        return _amount(ceiling, footprint.machine_total, CONFIGURED), CONFIGURED
    candidates = [(footprint.machine_total - machine_reserve(footprint.machine_total), MACHINE)]
    if wired_limit:
        candidates.append((wired_limit, WIRED))
    elif metal_limit:
        candidates.append((metal_limit, METAL))
    if footprint.cgroup_limit is not None:
        candidates.append((footprint.cgroup_limit - cgroup_reserve(footprint.cgroup_limit), CGROUP))
    return min(candidates)


def _amount(value: int | float, whole: int, key: str) -> int:
    """Bytes of an int, or of a float share of `whole`."""
    if isinstance(value, float):
        if not 0 < value <= 1:
            raise ValueError(f"{key} is {value}, but a share must be above 0 and at most 1")
        return int(whole * value)
    if isinstance(value, bool) or value <= 0:
        raise ValueError(f"{key} is {value}, but a size must be a positive number of bytes")
    return value
