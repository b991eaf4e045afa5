"""Memory limits as `mlxd doctor` sees them: what there is, which one binds, and what is left for models."""

from __future__ import annotations

from dataclasses import dataclass

from mlxd.daemon.checkup_mlx import LibraryReport
from mlxd.daemon.cli.doctor_address import Running
from mlxd.daemon.cli.doctor_checks import Check, Group
from mlxd.daemon.cli.views import MemoryView
from mlxd.daemon.config import located
from mlxd.daemon.config_errors import ConfigError, Problem
from mlxd.daemon.memory_books import resolved_limits
from mlxd.daemon.settings import LoadedConfig, MemorySettings
from mlxd.daemon.units import format_bytes
from mlxd.memory.footprint import Footprint, MemoryLimits
from mlxd.memory.limits import CONFIGURED, REMEDIES, Bound, CeilingTooLow, SoftTooLow, binding, ceiling_bounds
from mlxd.memory.probe import MemoryProbe

GROUP = Group("memory")
# A running daemon's ceiling may differ by so much: it asked before and after MLX was loaded.
_ALIKE = 0.02


@dataclass(frozen=True, slots=True)
class Room:
    """What models may use: the limits, and what the daemon uses itself, in bytes."""

    limits: MemoryLimits
    base_bytes: int

    @property
    def left(self) -> int:
        """Bytes for models."""
        return self.limits.soft_bytes - self.base_bytes


@dataclass(frozen=True, slots=True)
class Measured:
    """The machine's memory, what its GPU may have, and what a daemon without models uses, in bytes.

    `start_bytes` is the footprint that limits are held against, `base_bytes` the one once MLX is loaded too.
    `metal_bytes` is what Metal recommends, None without Metal.
    """

    probe: MemoryProbe
    footprint: Footprint
    start_bytes: int
    base_bytes: int
    metal_bytes: int | None


def measure(probe: MemoryProbe, report: LibraryReport | None, running: Running | None) -> Measured:
    """Measure with a probe; the daemon's own part is what a running one tells, else what a trial has measured."""
    footprint = probe.sample()
    start = report.start_bytes if report is not None else footprint.bytes
    base = report.base_bytes if report is not None and report.base_bytes is not None else start
    memory = running.memory if running is not None else None
    told = memory.parts.get("base", 0) if memory is not None else 0
    metal = report.metal_bytes if report is not None and report.metal_bytes is not None else probe.metal_limit()
    return Measured(probe, footprint, start, told or base, metal)


def room_for_models(loaded: LoadedConfig, measured: Measured) -> Room | Check:
    """The limits that would hold, or why a start would refuse them."""
    try:
        limits = resolved_limits(loaded.settings.memory, measured.probe, measured.start_bytes)
    except CeilingTooLow as error:
        return _too_low(loaded, "ceiling", error.ceiling_bytes, error.limit, measured)
    except SoftTooLow as error:
        return _too_low(loaded, "soft", error.soft_bytes, error.limit, measured)
    except ValueError as error:
        return GROUP.problem("limits", _placed(loaded, "soft", str(error)), "lower memory.soft")
    return Room(limits, measured.base_bytes)


def memory_checks(
    loaded: LoadedConfig | None, measured: Measured, room: Room | Check | None, running: Running | None
) -> list[Check]:
    """All about memory. Without a configuration, what an automatic ceiling would be."""
    settings = loaded.settings.memory if loaded is not None else MemorySettings()
    checks = [_bounds(_candidates(settings, measured))]
    if isinstance(room, Check):
        checks.append(room)
    elif room is not None:
        checks += [_limits(room.limits), _left(room, measured)]
    metal = measured.metal_bytes
    if metal is not None:
        checks.append(_wired(measured.probe.wired_limit(), metal))
    if running is not None:
        checks.append(_daemon(running, room.limits if isinstance(room, Room) else None))
    return checks


def _candidates(settings: MemorySettings, measured: Measured) -> tuple[Bound, ...]:
    footprint, probe = measured.footprint, measured.probe
    ceiling = None if settings.ceiling == "auto" else settings.ceiling.resolve(footprint.machine_total)
    return ceiling_bounds(ceiling, footprint, probe.metal_limit(), probe.wired_limit())


def _bounds(bounds: tuple[Bound, ...]) -> Check:
    """Every limit that the ceiling could come from; a configured one should not be above the others."""
    binds = binding(bounds)
    shown = (f"{bound.name} {format_bytes(bound.bytes)}{' (binds)' * bound.binds}" for bound in bounds)
    found = f"what the ceiling could come from: {', '.join(shown)}"
    details = {"bounds": [{"name": bound.name, "bytes": bound.bytes, "binds": bound.binds} for bound in bounds]}
    least = bounds[0]
    if binds.name == CONFIGURED and not least.binds:
        advice = (
            f'lower memory.ceiling to {format_bytes(least.bytes)}, or set it to "auto": above that, the system may '
            "stop the daemon before it sheds work itself"
        )
        return GROUP.warning("bounds", found, advice, **details)
    return GROUP.ok("bounds", found, **details)


def _limits(limits: MemoryLimits) -> Check:
    found = (
        f"the ceiling is {format_bytes(limits.ceiling_bytes)} ({limits.limit}), "
        f"the soft limit {format_bytes(limits.soft_bytes)}"
    )
    found += f" ({limits.soft_limit})" if limits.soft_is_size else ""
    details = {"ceiling_bytes": limits.ceiling_bytes, "soft_bytes": limits.soft_bytes, "limit": limits.limit}
    return GROUP.ok("limits", found, **details)


def _left(room: Room, measured: Measured) -> Check:
    own = f"the daemon itself uses {format_bytes(room.base_bytes)}"
    available = measured.footprint.machine_available
    details = {"base_bytes": room.base_bytes, "left_bytes": room.left}
    if room.left <= 0:
        found = f"{own}, which is not below the soft limit: no model can be loaded"
        return GROUP.problem("for models", found, REMEDIES[room.limits.soft_limit], **details)
    found = f"{own}; {format_bytes(room.left)} are left for models"
    if available < room.left:
        found += f", while others leave {format_bytes(available)} of it now"
    return GROUP.ok("for models", found, **details)


def _too_low(loaded: LoadedConfig, key: str, limit_bytes: int, limit: str, measured: Measured) -> Check:
    found = (
        f"{format_bytes(limit_bytes)} ({limit}) are not above the {format_bytes(measured.start_bytes)} that the idle "
        "daemon uses"
    )
    details = {"limit_bytes": limit_bytes, "base_bytes": measured.base_bytes, "limit": limit}
    advice = f"{REMEDIES[limit]}; with MLX the daemon itself uses {format_bytes(measured.base_bytes)}"
    return GROUP.problem("limits", _placed(loaded, key, found), advice, **details)


def _placed(loaded: LoadedConfig, key: str, message: str) -> str:
    """The message after the place of a key of [memory]."""
    return str(located(ConfigError(Problem(message, f"memory.{key}")), loaded))


def _wired(wired: int | None, metal: int) -> Check:
    """macOS only: how much of its memory the GPU may hold."""
    own = "is not set" if wired is None else f"is {format_bytes(wired)}"
    found = f"iogpu.wired_limit_mb {own}; Metal recommends at most {format_bytes(metal)}"
    return GROUP.ok("wired limit", found, wired_bytes=wired, metal_bytes=metal)


def _daemon(running: Running, limits: MemoryLimits | None) -> Check:
    memory = running.memory
    if memory is None:
        found = f"the daemon at {running.url} does not tell its memory: {running.refusal}"
        return GROUP.warning("daemon", found, "put a key that may read into $MLXD_API_KEY")
    used, ceiling = format_bytes(memory.footprint_bytes), format_bytes(memory.ceiling_bytes)
    found = f"the running daemon uses {used} of {ceiling} ({memory.limit}), pressure: {memory.pressure}"
    details = {
        "footprint_bytes": memory.footprint_bytes,
        "ceiling_bytes": memory.ceiling_bytes,
        "soft_bytes": memory.soft_bytes,
        "limit": memory.limit,
        "pressure": memory.pressure,
    }
    if memory.pressure != "ok":
        advice = "`mlxd ps` and `mlxd status` tell what holds it; unload a model, or send fewer requests at a time"
        return GROUP.warning("daemon", found, advice, **details)
    if limits is not None and not _agrees(memory, limits):
        found += f"; the configuration says {format_bytes(limits.ceiling_bytes)}"
        return GROUP.warning("daemon", found, "`mlxd reload` applies what was changed", **details)
    return GROUP.ok("daemon", found, **details)


def _agrees(memory: MemoryView, limits: MemoryLimits) -> bool:
    return abs(memory.ceiling_bytes - limits.ceiling_bytes) <= _ALIKE * limits.ceiling_bytes
