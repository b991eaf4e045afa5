"""The composition root: builds every part of the daemon from its settings, and ends them in order."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import structlog
from aiohttp import web

from mlxd.daemon.api.application import make_application
from mlxd.daemon.api.running import RunningRequests
from mlxd.daemon.api.services import Services
from mlxd.daemon.catalog import Catalog, build_catalog
from mlxd.daemon.config import ConfigError, Problem
from mlxd.daemon.engine_factory import EngineMaker, load_need
from mlxd.daemon.log import adopt_library_loggers
from mlxd.daemon.memory_books import MemoryBooks, limits_for
from mlxd.daemon.metrics import Metrics
from mlxd.daemon.settings import Settings
from mlxd.daemon.tokenizer_threads import TokenizerThreads
from mlxd.engines.backend import Backend, BackendFactory, mlx_backend
from mlxd.engines.errors import FootprintExceeded
from mlxd.engines.lanes import LanePool
from mlxd.engines.prefix_folder import PrefixFolder
from mlxd.engines.types import PrefillEvictionRequest
from mlxd.memory.crossing import CeilingEvent, RecoveredEvent, SoftEvent
from mlxd.memory.footprint import MemoryLimits
from mlxd.memory.guard import MemoryGuard
from mlxd.memory.limits import CeilingTooLow, SoftTooLow
from mlxd.memory.probe import MemoryProbe
from mlxd.registry.registry import ModelRegistry
from mlxd.registry.residency import Policy

log = structlog.stdlib.get_logger(__name__)

# Bytes that a trim must free to be a decision: above the soft limit one is tried every few seconds.
WORTH_TELLING = 1_000_000


class Daemon:
    """Everything that lives as long as the process. Built on the event loop; `close` is the twin of `start`."""

    def __init__(
        self,
        settings: Settings,
        probe: MemoryProbe,
        *,
        hf_cache: Path | None,
        backend: Callable[..., Backend] = mlx_backend,
    ) -> None:
        """Build all parts. Raises ConfigError for settings that this machine or its disk cannot follow."""
        self.settings = settings
        self.guard = MemoryGuard(probe, _limits(settings, probe))
        self._prefix_folder = prefix_folder(settings, backend)
        self._lanes = LanePool(partial(backend, self._prefix_folder) if self._prefix_folder is not None else backend)
        self._books = MemoryBooks(self.guard)
        self.catalog: Catalog = build_catalog(settings, hf_cache)
        step_lock = threading.Lock() if settings.engine.step_lock else None
        metrics = Metrics()
        maker = EngineMaker(
            settings, self.catalog, self._lanes, self.guard, self._room_for, metrics.freed, step_lock=step_lock
        )
        self.registry = ModelRegistry(
            self.catalog.specs,
            policy_of(settings),
            maker,
            self._books,
            load_need=load_need,
            stall_timeout=settings.residency.load_stall_timeout,
            queue_timeout=settings.residency.queue_timeout,
        )
        self._books.has_engines = lambda: self.registry.has_engines
        self._books.prefixes = self._prefix_bytes
        self.services = Services(
            registry=self.registry,
            names=self.catalog.names,
            settings=settings,
            tokenizers=TokenizerThreads(),
            running=RunningRequests(),
            guard=self.guard,
            books=self._books,
            metrics=metrics,
        )
        metrics.observe(self.registry.models, self.guard, self._books)
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def application(self) -> web.Application:
        """The HTTP application over this daemon's services."""
        return make_application(self.services)

    def start(self) -> None:
        """Watch memory, and load the libraries and the preloaded models in the background."""
        for note in (*self.catalog.notes, *self.catalog.names.conflicts):
            log.warning("models.note", note=note)
        watch = self.guard.watch(
            self.settings.memory.poll_interval, self._on_soft, self._on_ceiling, self._on_recovered, self._stop
        )
        self._tasks.append(asyncio.create_task(watch, name="memory.watch"))
        self._tasks.append(asyncio.create_task(self._warm_up(), name="warm_up"))

    async def close(self) -> bool:
        """Refuse, drain, abort, free, in this order. False when something had to be abandoned."""
        clean = await self.registry.close(self.settings.server.drain_timeout)
        self._stop.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        patience = self.settings.residency.unload_timeout if clean else 0.0
        ended = await asyncio.to_thread(self._lanes.close, patience)
        if self._prefix_folder is not None:
            ended = await asyncio.to_thread(self._prefix_folder.close, patience) and ended
        return clean and ended

    async def _warm_up(self) -> None:
        """Import what the first load needs, so that it neither pays for it nor holds the event loop."""
        started = time.monotonic()
        try:
            await self._lanes.warm_up()
        # Importing runs other people's code: it may lack a library, or refuse the limits of this process.
        except Exception as error:  # noqa: BLE001
            log.error("mlx.import_failed", error=repr(error))
            return
        adopt_library_loggers()
        log.info("mlx.imported", seconds=round(time.monotonic() - started, 3))
        self._books.reopen_base()
        self._books(fresh=True)
        for name in self.settings.models.preload:
            model = self.catalog.names.resolve(name, "").model
            await self.registry.load(model, wait=False)

    def _prefix_bytes(self) -> int:
        return sum(engine.stats().prefix_cache_bytes for engine in self.registry.engines().values())

    def _room_for(self, model: str) -> Callable[[PrefillEvictionRequest], Awaitable[None]]:
        async def make_room(request: PrefillEvictionRequest) -> None:
            await self.registry.make_room(model, request)

        return make_room

    async def _on_soft(self, _: SoftEvent) -> None:
        await self._get_below_soft("memory_soft")

    async def _on_ceiling(self, event: CeilingEvent) -> None:
        error = FootprintExceeded(event.footprint_bytes, event.ceiling_bytes, event.limit)
        inputs = {
            "footprint_bytes": event.footprint_bytes,
            "ceiling_bytes": event.ceiling_bytes,
            "limit": event.limit,
        }
        self.registry.abort_all(error, "memory_ceiling", inputs)
        await self._get_below_soft("memory_ceiling")

    async def _on_recovered(self, event: RecoveredEvent) -> None:
        """The guard has logged it; nothing was taken away that would have to be given back."""

    async def _get_below_soft(self, reason: str) -> None:
        """MLX's free buffers go first, then kept prompt prefixes, idle models only for what is still missing."""
        over = await self._reclaim(reason)
        if over > 0 and await self.registry.trim_prefixes(over, reason):
            # what was trimmed is in MLX's buffers now; the trim itself is told already
            await self._lanes.reclaim()
            over = self._over_soft()
        if over > 0:
            await self.registry.shed(over, reason)

    async def _reclaim(self, reason: str) -> int:
        """Give MLX's free buffers back; the bytes that are still over the soft limit."""
        before = self.guard.sample().footprint.bytes
        await self._lanes.reclaim()
        over = self._over_soft()
        soft = self.guard.limits.soft_bytes
        freed = before - (soft + over)
        if freed >= WORTH_TELLING:
            inputs = {"footprint_bytes": soft + over, "soft_bytes": soft, "freed_bytes": freed}
            self.registry.decisions.add("trim", reason, inputs=inputs)
        return over

    def _over_soft(self) -> int:
        return self.guard.sample().footprint.bytes - self.guard.limits.soft_bytes


def prefix_folder(settings: Settings, backend: BackendFactory) -> PrefixFolder | None:
    """Where prompt prefixes outlive their models, None when no model keeps any there."""
    engines = [settings.engine, *(settings.engine_for(entry.name) for entry in settings.model)]
    sizes = [engine.prefix_cache_disk for engine in engines]
    most = max((size.bytes or 0 for size in sizes if size != "off"), default=0)
    return PrefixFolder(settings.server.state_dir / "prefixes", most, backend) if most else None


def policy_of(settings: Settings) -> Policy:
    """The planner's policy from the [residency] table."""
    residency = settings.residency
    return Policy(
        max_loaded=residency.max_loaded,
        queue_size=residency.queue_size,
        max_wait=float("inf") if residency.max_wait is None else residency.max_wait,
        min_residency=residency.min_residency,
        unload_timeout=residency.unload_timeout,
        retry_backoff=residency.retry_backoff,
        autoload=settings.models.autoload,
    )


def _limits(settings: Settings, probe: MemoryProbe) -> MemoryLimits:
    try:
        return limits_for(settings.memory, probe)
    except CeilingTooLow as error:
        raise ConfigError(Problem(str(error), "memory.ceiling")) from error
    except (SoftTooLow, ValueError) as error:
        raise ConfigError(Problem(str(error), "memory.soft")) from error
