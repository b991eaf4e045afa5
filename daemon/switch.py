"""Puts other settings and models into effect, everywhere at once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

import structlog

from mlxd.daemon.engine_factory import EngineMaker
from mlxd.daemon.live import InEffect, Live
from mlxd.daemon.log import set_log_level
from mlxd.daemon.settings import Settings
from mlxd.engines.prefix_folder import PrefixFolder
from mlxd.memory.footprint import MemoryLimits
from mlxd.memory.guard import MemoryGuard
from mlxd.registry.registry import ModelRegistry
from mlxd.registry.residency import Policy
from mlxd.registry.states import State

log = structlog.stdlib.get_logger(__name__)

_IN_MEMORY = (State.LOADING, State.READY)


@dataclass(frozen=True, slots=True)
class Switch:
    """Everything that took a copy of what it needs of the settings; all else reads them from `live`.

    `preload` loads models in the background, `hurry` ends the pause of the watch over the folders.
    """

    live: Live
    registry: ModelRegistry
    guard: MemoryGuard
    engines: EngineMaker
    prefixes: PrefixFolder
    preload: Callable[[Sequence[str]], None]
    hurry: Callable[[], None]

    def __call__(self, new: InEffect, limits: MemoryLimits | None, reloaded: Collection[str]) -> None:
        """From here on `new` is in effect, and so are `limits` unless they are None. Nothing runs in between.

        `reloaded` models are loaded otherwise now; those that are pinned and in memory come back by themselves.
        """
        before, settings = self.live.settings, new.settings
        pinned = [model.spec.name for model in self.registry.models() if model.pinned and model.state in _IN_MEMORY]
        self.live.swap(settings, new.catalog)
        if limits is not None:
            self.guard.limits = limits
        self.registry.reconfigure(
            new.catalog.specs,
            policy_of(settings),
            stall_timeout=settings.residency.load_stall_timeout,
            queue_timeout=settings.residency.queue_timeout,
        )
        preload = [name for name in settings.models.preload if name not in before.models.preload]
        wanted = [*(name for name in pinned if name in reloaded), *preload]
        for step in (self.engines.retune, partial(self._follow, before, settings), partial(self.preload, wanted)):
            _try(step)

    def _follow(self, before: Settings, settings: Settings) -> None:
        if bound := prefix_disk_bound(settings):
            self.prefixes.resize(bound)
        if settings.memory.poll_interval != before.memory.poll_interval:
            self.guard.retime(settings.memory.poll_interval)
        if settings.log.level != before.log.level:
            set_log_level(settings.log.level)
            self.engines.hosts.workers.log_from(logging.getLogger().level)
        if settings.models.watch_interval != before.models.watch_interval:
            self.hurry()


def _try(step: Callable[[], None]) -> None:
    try:
        step()
    # The registry has the new settings already: a part that does not take them must not keep the others from it.
    except Exception:
        log.exception("daemon.reload_step_broke")


def policy_of(settings: Settings) -> Policy:
    """The planner's policy from the [residency] table."""
    residency = settings.residency
    return Policy(
        max_loaded=residency.max_loaded,
        max_loading=residency.max_loading,
        queue_size=residency.queue_size,
        max_wait=float("inf") if residency.max_wait is None else residency.max_wait,
        min_residency=residency.min_residency,
        unload_timeout=residency.unload_timeout,
        retry_backoff=residency.retry_backoff,
        autoload=settings.models.autoload,
    )


def prefix_disk_bound(settings: Settings) -> int:
    """Bytes on the disk that all models' kept prompt prefixes may have together; 0 when none keeps any there."""
    engines = [settings.engine, *(settings.engine_for(entry.name) for entry in settings.model)]
    sizes = [engine.prefix_cache_disk for engine in engines]
    return max((size.bytes or 0 for size in sizes if size != "off"), default=0)
