"""Reads configuration and folders again, and puts into effect what changed. What did not change is not touched."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import structlog
from msgspec import to_builtins

from mlxd.daemon.catalog import Survey, build_catalog, survey
from mlxd.daemon.catalog_merge import Settled, merge
from mlxd.daemon.config import located
from mlxd.daemon.config_effect import in_effect
from mlxd.daemon.config_errors import ConfigError, Problem
from mlxd.daemon.disk_thread import DiskStuck, DiskThread
from mlxd.daemon.live import InEffect, Live
from mlxd.daemon.reload_diff import ReloadDiff, reload_diff
from mlxd.daemon.settings import LoadedConfig, MemorySettings
from mlxd.daemon.switch import Switch
from mlxd.memory.footprint import MemoryLimits
from mlxd.registry.errors import ShuttingDown
from mlxd.registry.registry import ModelRegistry
from mlxd.registry.states import RESIDENT

log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Sources:
    """Where what is in effect comes from. The callables read disks, block, and raise ConfigError.

    `read` gives the configuration, checked as at a start; `limits` the memory limits that settings mean.
    """

    read: Callable[[], LoadedConfig]
    limits: Callable[[MemorySettings], MemoryLimits]
    hf_cache: Path | None


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a reload would put into effect, and where it comes from; no `limits` when they stay as they are."""

    state: InEffect
    limits: MemoryLimits | None
    origins: Mapping[str, str]


class Reloader:
    """One reload at a time; the others wait for their turn. Used on the event loop only.

    `announced` is entered for as long as a reload takes that may change something; it may be set before the first.
    """

    def __init__(self, sources: Sources, live: Live, registry: ModelRegistry, switch: Switch) -> None:
        self._sources = sources
        self._live = live
        self._registry = registry
        self._switch = switch
        self._disk = DiskThread()
        self._turn = asyncio.Lock()
        self._requested = asyncio.Event()
        self.announced: Callable[[], AbstractContextManager[None]] = nullcontext

    async def reload(self, reason: str, *, dry_run: bool = False) -> ReloadDiff:
        """Read everything again and apply it, with `dry_run` only tell what that would change.

        Raises ConfigError when something is wrong, and ShuttingDown; nothing is changed then.
        """
        async with self._turn:
            self._check_open()
            return await self._reload(reason, dry_run=dry_run)

    async def _reload(self, reason: str, *, dry_run: bool) -> ReloadDiff:
        with nullcontext() if dry_run else self.announced():
            wanted = await self._read_all()
            self._check_open()
            before = self._live.now
            diff = reload_diff(before, wanted.state)
            if not dry_run:
                settings = in_effect(before.settings, wanted.state.settings)
                self._apply(InEffect(settings, wanted.state.catalog), wanted.limits, diff, reason)
                self._live.origins = wanted.origins
            return diff

    async def refresh(self, settled: Callable[[], Settled]) -> frozenset[str]:
        """Look through the folders again, and take over what touches no model in memory.

        `settled` is called on a thread, after the folders were read. Gives the models whose change has to wait until
        they are out of memory. Raises ShuttingDown and DiskStuck.
        """
        async with self._turn:
            self._check_open()
            found, is_settled = await self._disk.run(lambda: (self._survey(), settled()))
            self._check_open()
            before = self._live.now
            merged = merge(
                before.catalog,
                found.catalog,
                resident=self._resident(),
                troubled=found.troubled,
                settled=is_settled,
            )
            after = InEffect(before.settings, merged.catalog)
            diff = reload_diff(before, after)
            if diff.is_empty and not diff.notes:
                self._live.swap(after.settings, after.catalog)
            else:
                self._apply(after, None, diff, "folders")
            return merged.deferred

    def request(self) -> None:
        """Ask for a reload; several requests before it begins are one."""
        self._requested.set()

    async def serve_requests(self) -> None:
        """Reload whenever somebody asked for it, until the daemon stops. What goes wrong is logged."""
        while not self._registry.closing:
            await self._requested.wait()
            self._requested.clear()
            try:
                await self.reload("signal")
            except ConfigError as error:
                log.error("daemon.reload_refused", problems=[str(problem) for problem in error.problems])
            except ShuttingDown:
                return
            # A reload that breaks in an unforeseen way must not be the last one.
            except Exception:
                log.exception("daemon.reload_broke")

    async def _read_all(self) -> Wanted:
        try:
            return await self._disk.run(self._wanted)
        except DiskStuck as error:
            raise ConfigError(Problem(str(error))) from error

    def _wanted(self) -> Wanted:
        loaded = self._sources.read()
        try:
            catalog = build_catalog(loaded.settings, self._sources.hf_cache, self._live.catalog.basis)
            memory = loaded.settings.memory
            changed = memory != self._live.settings.memory
            limits = self._sources.limits(memory) if changed else None
        except ConfigError as error:
            raise located(error, loaded) from error
        return Wanted(InEffect(loaded.settings, catalog), limits, loaded.origins)

    def _survey(self) -> Survey:
        found = survey(self._live.settings, self._sources.hf_cache, self._live.catalog.basis)
        notes = (*found.catalog.notes, *(str(problem) for problem in found.problems))
        return replace(found, catalog=replace(found.catalog, notes=notes))

    def _resident(self) -> set[str]:
        return {model.spec.name for model in self._registry.models() if model.state in RESIDENT}

    def _check_open(self) -> None:
        if self._registry.closing:
            raise ShuttingDown

    def _apply(self, state: InEffect, limits: MemoryLimits | None, diff: ReloadDiff, reason: str) -> None:
        self._switch(state, limits, diff.models.reloaded)
        # names, presets and sampling are no part of what the registry plans with, so it has not told of them
        self._registry.on_models((*diff.models.added, *diff.models.reloaded, *diff.models.changed))
        for note in diff.notes:
            log.warning("models.note", note=note)
        if not diff.is_empty:
            self._registry.decisions.add("reload", reason, inputs=to_builtins(diff))
        log.info("daemon.reloaded", reason=reason, changes=not diff.is_empty, needs_restart=diff.needs_restart)
