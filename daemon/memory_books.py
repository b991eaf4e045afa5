"""Memory for the planner and for readers: the guard's measurements beside the registry's books."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from mlxd.daemon.config_errors import ConfigError, Problem
from mlxd.daemon.settings import MemorySettings
from mlxd.memory.footprint import MemoryLimits
from mlxd.memory.guard import MemoryGuard
from mlxd.memory.limits import CeilingTooLow, SoftTooLow, resolve_limits
from mlxd.memory.parts import Parts, parts
from mlxd.memory.probe import MemoryProbe
from mlxd.registry.residency import MemoryReading
from mlxd.registry.snapshot import ModelSnapshot


def limits_for(settings: MemorySettings, probe: MemoryProbe, idle_bytes: int | None = None) -> MemoryLimits:
    """The limits that hold on this machine; `idle_bytes` is the idle daemon's footprint, the present one if None.

    Raises ConfigError for a limit that the machine cannot follow.
    """
    try:
        return resolved_limits(settings, probe, idle_bytes)
    except CeilingTooLow as error:
        raise ConfigError(Problem(str(error), "memory.ceiling")) from error
    except (SoftTooLow, ValueError) as error:
        raise ConfigError(Problem(str(error), "memory.soft")) from error


def resolved_limits(settings: MemorySettings, probe: MemoryProbe, idle_bytes: int | None) -> MemoryLimits:
    """As `limits_for`. Raises CeilingTooLow, SoftTooLow, and ValueError for a soft limit above the ceiling."""
    footprint = probe.sample()
    if idle_bytes is not None:
        footprint = replace(footprint, bytes=idle_bytes)
    ceiling = None if settings.ceiling == "auto" else settings.ceiling.resolve(footprint.machine_total)
    soft = settings.soft.bytes if settings.soft.bytes is not None else settings.soft.fraction or 1.0
    return resolve_limits(ceiling, soft, footprint, probe.metal_limit(), probe.wired_limit())


@dataclass(slots=True)
class MemoryBooks:
    """What the planner is told. The base is what the process uses while no model is loaded, in bytes, to which
    `workers_base` adds what the processes of models use beside them.
    """

    guard: MemoryGuard
    has_engines: Callable[[], bool] = lambda: False
    prefixes: Callable[[], int] = lambda: 0
    base: int = 0
    base_is_open: bool = True
    workers_base: Callable[[], int] = lambda: 0

    def __call__(self, *, fresh: bool) -> MemoryReading:
        """The limit for models, the one that holds now, and what is in use; MLX's buffer cache and kept prompt prefixes
        count as free.
        """
        # A probe that fails must not end an event half-way: the guard logs it, and its last reading has to do.
        reading, prefixes = self.guard.reading(0.0 if fresh else math.inf), self.prefixes()
        measured = reading.footprint.in_use - prefixes
        if self.base_is_open and fresh and not self.has_engines():
            self.base = measured
            self.base_is_open = False
        limits = self.guard.limits
        return MemoryReading(
            limits.soft_bytes, limits.soft_limit, measured, self.base, prefixes, limit_now=self.guard.soft_now
        )

    def reopen_base(self) -> None:
        """The libraries are loaded now: measure the base again when no model is."""
        self.base_is_open = True

    def parts(self, models: Iterable[ModelSnapshot]) -> Parts:
        """The latest footprint taken apart."""
        reading = self.guard.reading()
        loaded = [model for model in models if model.engine is not None]
        kv, prefixes = sum(model.kv_bytes for model in loaded), sum(model.prefix_cache_bytes for model in loaded)
        weights = sum(model.resident_bytes for model in loaded) - kv - prefixes
        return parts(reading.footprint, self.base + self.workers_base(), weights, kv, prefixes)
