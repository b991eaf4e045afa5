"""The composition root: builds every part of the daemon from its settings, and ends them in order."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from aiohttp import web

from mlxd.daemon.api.application import make_application
from mlxd.daemon.api.feed_source import FeedSource
from mlxd.daemon.api.image_room import ImageRoom
from mlxd.daemon.api.running import RunningRequests
from mlxd.daemon.api.services import Services
from mlxd.daemon.breadcrumbs import Breadcrumbs
from mlxd.daemon.breadcrumbs_boot import boot_id
from mlxd.daemon.breadcrumbs_work import AnyRequest
from mlxd.daemon.catalog import build_catalog
from mlxd.daemon.config import check_bind
from mlxd.daemon.config_errors import ConfigError
from mlxd.daemon.downloads.pulls import Pulls
from mlxd.daemon.engine_factory import EngineMaker, load_need
from mlxd.daemon.engine_hosts import make_hosts, needs_mlx_here
from mlxd.daemon.engine_memory import MostForPrompts, memory_share
from mlxd.daemon.key_ring import KeyRing
from mlxd.daemon.live import Live
from mlxd.daemon.log import adopt_library_loggers
from mlxd.daemon.log_tail import LogTail
from mlxd.daemon.memory_books import MemoryBooks, limits_for
from mlxd.daemon.memory_relief import MemoryRelief
from mlxd.daemon.metrics import Metrics
from mlxd.daemon.model_removal import ModelRemover
from mlxd.daemon.model_watch import ModelWatch
from mlxd.daemon.observers import connect_crumbs, connect_metrics, connect_share
from mlxd.daemon.peers.peers import Peers
from mlxd.daemon.probe_choice import count_workers
from mlxd.daemon.reload import Reloader, Sources
from mlxd.daemon.restore import FirstLoads
from mlxd.daemon.settings import LoadedConfig, Settings
from mlxd.daemon.sleep import SleepWatch, SystemPower
from mlxd.daemon.switch import Switch, policy_of, prefix_disk_bound
from mlxd.daemon.tokenizer_threads import TokenizerThreads
from mlxd.daemon.watchdog import EngineWatchdog
from mlxd.daemon.watchdog_dumps import HangDumps
from mlxd.engines.backend import Backend, mlx_backend
from mlxd.engines.errors import MemoryRefusal
from mlxd.engines.lanes import LanePool
from mlxd.engines.prefix_folder import PrefixFolder
from mlxd.engines.types import PrefillEvictionRequest
from mlxd.memory.guard import MemoryGuard
from mlxd.memory.probe import MemoryProbe
from mlxd.registry.errors import ModelRemoved, RegistryError
from mlxd.registry.registry import ModelRegistry
from mlxd.registry.spec import ModelSpec
from mlxd.registry.states import RESIDENT

log = structlog.stdlib.get_logger(__name__)

# Seconds that an engine's rows may stand still for others to make room: an unload without anything to write takes less.
GROWTH_PATIENCE = 1.0
# Seconds that the daemon's own tasks get to end, and a blocking call beyond those that it was given.
TASKS_PATIENCE = 2.0
# Seconds within which the system ends a killed process.
KILL_PATIENCE = 5.0
# The part of the soft limit that images of requests may take before they are encoded.
IMAGES_PART = 8


class Daemon:
    """Everything that lives as long as the process. Built on the event loop; `close` is the twin of `start`."""

    def __init__(
        self,
        settings: Settings,
        probe: MemoryProbe,
        *,
        hf_cache: Path | None,
        backend: Callable[..., Backend] = mlx_backend,
        read: Callable[[], LoadedConfig] | None = None,
        on_hung: Callable[[str], None] = lambda _: None,
        loop_lag: Callable[[], float] = lambda: 0.0,
        boot: Callable[[], str | None] = boot_id,
        power: SystemPower | None = None,
        log_tail: LogTail | None = None,
    ) -> None:
        """Build all parts; `read` reads the configuration again for a reload, by default only the folders are.

        `on_hung` is called as EngineWatchdog says. `loop_lag` gives the seconds by which the event loop is late, `boot`
        what tells one start of the machine from the next; `power` tells of its sleep, `log_tail` has the last lines of
        the log. Raises ConfigError for settings that this machine or its disk cannot follow.
        """
        limits = partial(limits_for, probe=probe, idle_bytes=probe.sample().bytes)
        self._probe = probe
        self._loop_lag = loop_lag
        self.guard = MemoryGuard(probe, limits(settings.memory))
        self._prefix_folder = PrefixFolder(settings.server.state_dir / "prefixes", prefix_disk_bound(settings), backend)
        self._lanes = LanePool(partial(backend, self._prefix_folder, lambda: self.guard.limits.ceiling_bytes))
        self._hosts = make_hosts(settings, self._lanes, lambda: self.guard, lambda: self.live)
        count_workers(probe, lambda: self._hosts.workers.counters)
        self._books = MemoryBooks(self.guard, workers_base=lambda: self._hosts.workers.base_bytes)
        self._share = memory_share(self.guard)
        self._metrics = Metrics()
        self._log_tail = LogTail() if log_tail is None else log_tail
        self._keys = KeyRing.read(settings.auth.keys_file)
        check_bind(settings, has_keys=not self._keys.is_open)
        self.live = Live(settings, build_catalog(settings, hf_cache))
        maker = self._engine_maker(settings)
        self.registry = self._registry(settings, maker)
        sources = Sources(read or (lambda: LoadedConfig(settings, None, {})), limits, hf_cache)
        self.reloader = Reloader(sources, self.live, self.registry, self._switch(maker))
        self.watch = ModelWatch(self.live, hf_cache, self.reloader.refresh, self._is_in_memory)
        self.dumps = HangDumps(settings.server.state_dir)
        self._watchdog = EngineWatchdog(
            self.registry.engines, lambda: self.live.settings.supervision, self.dumps, on_hung
        )
        self._crumbs = Breadcrumbs.read(settings.server.state_dir, boot())
        self._sleep = SleepWatch(power, self._hosts, partial(self.guard.reading, 0.0))
        self._first_loads = FirstLoads(
            self.live, self.registry, self._crumbs, self._preload, partial(self.guard.reading, 0.0)
        )
        self._pulls = Pulls(lambda: self.live.settings.models.dirs, self.watch.adopt)
        self._remover = ModelRemover(hf_cache, self.watch.adopt)
        self._relief = MemoryRelief(self.guard, self.registry, self._hosts, self._share, self._metrics.rung)
        self.services = self._services()
        self._stop = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def _engine_maker(self, settings: Settings) -> EngineMaker:
        step_lock = threading.Lock() if settings.engine.step_lock else None
        base, processes = lambda: self._books.base, self._hosts.workers.base_of
        most = MostForPrompts(self.guard, base, processes, lambda: self.registry)
        return EngineMaker(
            self.live,
            self._hosts,
            self.guard,
            self._share,
            most.of,
            make_room=self._room_for,
            refused=self._refusal_of,
            freed=self._metrics.freed,
            step_lock=step_lock,
        )

    def _registry(self, settings: Settings, maker: EngineMaker) -> ModelRegistry:
        registry = ModelRegistry(
            self.live.catalog.specs,
            policy_of(settings),
            maker,
            self._books,
            load_need=self._load_need,
            stall_timeout=settings.residency.load_stall_timeout,
            queue_timeout=settings.residency.queue_timeout,
        )
        self._books.has_engines = lambda: registry.has_engines
        self._books.prefixes = self._prefix_bytes
        return registry

    def _load_need(self, spec: ModelSpec) -> int:
        return load_need(spec, self.live.settings)

    def _switch(self, maker: EngineMaker) -> Switch:
        return Switch(
            self.live, self.registry, self.guard, maker, self._prefix_folder, self._preload_soon, self._look_soon
        )

    def _services(self) -> Services:
        services = Services(
            registry=self.registry,
            live=self.live,
            reloader=self.reloader,
            tokenizers=TokenizerThreads(),
            running=RunningRequests(),
            guard=self.guard,
            books=self._books,
            keys=self._keys,
            image_room=ImageRoom(lambda: self.guard.limits.soft_bytes // IMAGES_PART),
            metrics=self._metrics,
            log_tail=self._log_tail,
            pulls=self._pulls,
            peers=Peers(lambda: self.live.settings.peer),
            remover=self._remover,
            loop_lag=self._loop_lag,
            at_work=self._at_work,
        )
        self._metrics.observe(self.registry.models, self.guard, self._books, self._share)
        self._metrics.observe_peers(services.peers)
        FeedSource(services).connect()
        connect_metrics(self.registry, services.running, self._metrics)
        connect_share(self.registry, self.guard, self._share, self._relief)
        connect_crumbs(self.registry, self._crumbs, self._first_loads)
        self.registry.before_load = self._before_load
        return services

    async def _before_load(self, name: str) -> None:
        """What is dangerous waits for the disk, and for a machine that sleeps."""
        await self._sleep.awake()
        await self._crumbs.before_load(name)

    @contextlib.asynccontextmanager
    async def _at_work(self, model: str, requests: Sequence[AnyRequest]) -> AsyncIterator[None]:
        await self._sleep.awake()
        async with self._crumbs.at_work(model, requests):
            yield

    def application(self) -> web.Application:
        """The HTTP application over this daemon's services."""
        return make_application(self.services)

    def start(self) -> None:
        """Watch memory and folders, and load the libraries and the preloaded models in the background."""
        for note in self.live.catalog.remarks:
            log.warning("models.note", note=note)
        interval = self.live.settings.memory.poll_interval
        relief = self._relief
        watch = self.guard.watch(interval, relief.on_soft, relief.on_ceiling, relief.on_recovered, self._stop)
        self._own(watch, "memory.watch")
        self._own(self._warm_up(), "warm_up")
        self._own(self.reloader.serve_requests(), "reload")
        self._own(self._keys.run(), "keys.watch")
        self._own(self.watch.run(), "models.watch")
        self._own(self._watchdog.run(), "watchdog")
        self._own(self._crumbs.run(), "breadcrumbs")
        self._own(self._sleep.run(), "sleep")
        self._own(self._hosts.forget_prefixes(self.live), "prefixes")
        self._own(self._pulls.run(), "pulls")
        self._own(self.services.peers.run(), "peers")

    async def close(self) -> bool:
        """Refuse, drain, abort, free, in this order. False when something had to be abandoned.

        It takes the drain timeout, the unload timeout and a few seconds at most.
        """
        drain, unload = self.live.settings.server.drain_timeout, self.live.settings.residency.unload_timeout
        until = time.monotonic() + drain + unload
        self._crumbs.closing()
        clean, _ = await asyncio.gather(self.registry.close(drain), self.services.peers.drain(drain))
        self._stop.set()
        processes = self._pulls.close(KILL_PATIENCE), self._hosts.workers.close(KILL_PATIENCE)
        ended = [await self._end_tasks(), *await asyncio.gather(*processes)]
        for part in (self._lanes, self._prefix_folder):
            patience = min(unload, max(0.0, until - time.monotonic())) if clean else 0.0
            ended.append(await _closed_within(patience, part.close))
        in_order = clean and all(ended)
        if in_order:
            await self._crumbs.end()
        return in_order

    async def _end_tasks(self) -> bool:
        for task in self._tasks:
            task.cancel()
        if not self._tasks:
            return True
        _, left = await asyncio.wait(self._tasks, timeout=TASKS_PATIENCE)
        return not left

    def _own(self, coroutine: Coroutine[Any, Any, None], name: str) -> None:
        """Run a task that `close` ends."""
        task = asyncio.create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _warm_up(self) -> None:
        """Import what the first load needs, so that it neither pays for it nor holds the event loop."""
        if needs_mlx_here(self.live.settings) and not await self._import_mlx():
            return
        self._books.reopen_base()
        self._books(fresh=True)
        self._limit_again()
        await self._first_loads.run()

    async def _import_mlx(self) -> bool:
        started = time.monotonic()
        try:
            await self._lanes.warm_up()
        # Importing runs other people's code: it may lack a library, or refuse the limits of this process.
        except Exception as error:  # noqa: BLE001
            log.error("mlx.import_failed", error=repr(error))
            return False
        adopt_library_loggers()
        log.info("mlx.imported", seconds=round(time.monotonic() - started, 3))
        return True

    def _limit_again(self) -> None:
        """MLX knows its device now, and the daemon is as large as it is without models."""
        try:
            self.guard.limits = limits_for(self.live.settings.memory, self._probe, self._books.base)
        except ConfigError as error:
            log.error("memory.no_room", message=str(error))
        # The limits of the start stay in effect; what comes after this must not depend on a reading.
        except Exception:
            log.exception("memory.limits_unread")

    async def _preload(self, names: Sequence[str]) -> None:
        for name in names:
            try:
                await self.registry.load(self.live.names.resolve(name, "").model, wait=False)
            except RegistryError as error:  # a reload took the name away meanwhile
                log.warning("model.load_refused", model=name, message=str(error))

    def _preload_soon(self, names: Sequence[str]) -> None:
        self._own(self._preload(names), "preload")

    def _look_soon(self) -> None:
        self.watch.hurry()

    def _is_in_memory(self, name: str) -> bool:
        try:
            return self.registry.model(name).state in RESIDENT
        except ModelRemoved:
            return False

    def _refusal_of(self, model: str) -> Callable[[MemoryRefusal], None]:
        def refused(error: MemoryRefusal) -> None:
            self.registry.refused(model, error)

        return refused

    def _prefix_bytes(self) -> int:
        return sum(engine.stats().prefix_cache_bytes for engine in self.registry.engines().values())

    def _room_for(self, model: str) -> Callable[[PrefillEvictionRequest], Awaitable[None]]:
        async def make_room(request: PrefillEvictionRequest) -> None:
            # rows that wait to grow stand still meanwhile; what was begun for them goes on
            patience = GROWTH_PATIENCE if request.reason == "decode" else None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await self.registry.make_room(model, request)

        return make_room


async def _closed_within(seconds: float, close: Callable[[float], bool]) -> bool:
    """Whether a blocking `close` ended in so many seconds; it is not waited for much longer, whatever it does."""
    try:
        async with asyncio.timeout(seconds + TASKS_PATIENCE):
            return await asyncio.to_thread(close, seconds)
    except TimeoutError:
        return False
