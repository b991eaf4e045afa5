"""From configured values and one footprint to the limits that hold: a pure function."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from mlxd.memory.footprint import SOFT_SIZE, Footprint, MemoryLimits

GIB = 1 << 30

CONFIGURED = "memory.ceiling"
MACHINE = "machine total less reserve"
CGROUP = "cgroup memory.max"
METAL = "Metal recommended working set"
WIRED = "iogpu.wired_limit_mb"

REMEDIES: Mapping[str, str] = {
    CONFIGURED: "raise memory.ceiling",
    SOFT_SIZE: "raise memory.soft",
    MACHINE: "set memory.ceiling to more than the automatic share of the machine",
    CGROUP: "raise the memory limit of the container or service",
    METAL: "raise the share of the GPU with iogpu.wired_limit_mb",
    WIRED: "raise iogpu.wired_limit_mb",
}
"""What gives more room, by the name of the limit that binds."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A limit that the ceiling could come from: its name, and the bytes of footprint that it allows.

    `binds` on the one that it does come from.
    """

    name: str
    bytes: int
    binds: bool = False


class CeilingTooLow(ValueError):
    """The ceiling leaves nothing to work with: the idle daemon already uses as much. Bytes."""

    def __init__(self, ceiling_bytes: int, footprint_bytes: int, limit: str) -> None:
        super().__init__(
            f"the memory ceiling of {ceiling_bytes} bytes ({limit}) is not above the {footprint_bytes} bytes the idle "
            f"daemon uses; {REMEDIES[limit]}"
        )
        self.ceiling_bytes = ceiling_bytes
        self.footprint_bytes = footprint_bytes
        self.limit = limit


class SoftTooLow(ValueError):
    """The soft limit is never reached from above, so no abort could ever count as over. Bytes.

    `limit` names what binds it: memory.soft if that is a size, else what makes the ceiling of which it is a share.
    """

    def __init__(self, soft_bytes: int, footprint_bytes: int, limit: str) -> None:
        share = "" if limit == SOFT_SIZE else ", or the share that memory.soft is"
        super().__init__(
            f"the soft memory limit of {soft_bytes} bytes ({limit}) is not above the {footprint_bytes} bytes the idle "
            f"daemon uses; {REMEDIES[limit]}{share}"
        )
        self.soft_bytes = soft_bytes
        self.footprint_bytes = footprint_bytes
        self.limit = limit


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
    bound = binding(ceiling_bounds(ceiling, footprint, metal_limit, wired_limit))
    if bound.bytes <= footprint.bytes:
        raise CeilingTooLow(bound.bytes, footprint.bytes, bound.name)
    limits = MemoryLimits(bound.bytes, _amount(soft, bound.bytes, SOFT_SIZE), bound.name, isinstance(soft, int))
    if limits.soft_bytes > bound.bytes:
        raise ValueError(
            f"memory.soft is {limits.soft_bytes} bytes, above the ceiling of {bound.bytes} bytes ({bound.name})"
        )
    if limits.soft_bytes <= footprint.bytes:
        raise SoftTooLow(limits.soft_bytes, footprint.bytes, limits.soft_limit)
    return limits


def ceiling_bounds(
    ceiling: int | float | None, footprint: Footprint, metal_limit: int | None, wired_limit: int | None = None
) -> tuple[Bound, ...]:
    """All that the ceiling could come from, the least first, as `resolve_limits` takes its arguments.

    Exactly one binds: a configured ceiling, else the least. Raises ValueError for a ceiling that is out of range.
    """
    automatic = _automatic(footprint, metal_limit, wired_limit)
    if ceiling is None:
        least, *others = automatic
        return (replace(least, binds=True), *others)
    configured = Bound(CONFIGURED, _amount(ceiling, footprint.machine_total, CONFIGURED), binds=True)
    return tuple(_least_first([*automatic, configured]))


def binding(bounds: Iterable[Bound]) -> Bound:
    """The one that binds."""
    return next(bound for bound in bounds if bound.binds)


def _automatic(footprint: Footprint, metal_limit: int | None, wired_limit: int | None) -> list[Bound]:
    """What an automatic ceiling is the least of, the least first."""
    bounds = [Bound(MACHINE, footprint.machine_total - machine_reserve(footprint.machine_total))]
    if wired_limit:
        bounds.append(Bound(WIRED, wired_limit))
    elif metal_limit:
        bounds.append(Bound(METAL, metal_limit))
    if footprint.cgroup_limit is not None:
        bounds.append(Bound(CGROUP, footprint.cgroup_limit - cgroup_reserve(footprint.cgroup_limit)))
    return _least_first(bounds)


def _least_first(bounds: Iterable[Bound]) -> list[Bound]:
    return sorted(bounds, key=lambda bound: (bound.bytes, bound.name))


def _amount(value: int | float, whole: int, key: str) -> int:
    """Bytes of an int, or of a float share of `whole`."""
    if isinstance(value, float):
        if not 0 < value <= 1:
            raise ValueError(f"{key} is {value}, but a share must be above 0 and at most 1")
        return int(whole * value)
    if isinstance(value, bool) or value <= 0:
        raise ValueError(f"{key} is {value}, but a size must be a positive number of bytes")
    return value
