"""Where engines run: on lanes of this process, or each in a process of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from mlxd.daemon.live import Live
from mlxd.daemon.settings import EngineSettings, Isolation, Settings
from mlxd.engines.engine_run import EngineHost
from mlxd.engines.lanes import LanePool
from mlxd.engines.worker.worker_settings import WorkerSettings
from mlxd.engines.worker.workers import Workers
from mlxd.memory.guard import MemoryGuard
from mlxd.memory.probe import has_ended, process_bytes

SCRATCH = "scratch"
"""In the state directory: what crosses to workers in files."""
PREFIXES = "worker-prefixes"
"""In the state directory: what workers keep of prompts, a folder for each model."""

# Bytes that a process with MLX and its libraries takes before there is a model in it.
WORKER_BASE = 100_000_000


@dataclass(frozen=True, slots=True)
class EngineHosts:
    """Both kinds of hosts."""

    lanes: LanePool
    workers: Workers

    def host(self, isolation: Isolation) -> EngineHost:
        """The host of an engine with this isolation."""
        return self.workers if isolation == "process" else self.lanes

    async def reclaim(self) -> None:
        """Give MLX's free buffers back to the system, here and in workers, while engines go on."""
        await asyncio.gather(self.lanes.reclaim(), self.workers.reclaim())

    async def forget_prefixes(self, live: Live) -> None:
        """Remove what processes have kept of prompts for models that are gone, or keep none any more."""
        kept = [spec.name for spec in live.catalog.specs if _keeps_prefixes(live.settings.engine_for(spec.name))]
        await asyncio.to_thread(self.workers.forget_prefixes, kept)

    async def hold_steps(self, seconds: float) -> bool:
        """Let no step begin, here and in workers; whether all that run have ended within so many seconds."""
        ended = await asyncio.gather(
            asyncio.to_thread(self.lanes.crowd.close, seconds), self.workers.hold_steps(seconds)
        )
        return all(ended)

    def free_steps(self) -> None:
        """The twin of `hold_steps`."""
        self.lanes.crowd.open()
        self.workers.free_steps()


def make_hosts(
    settings: Settings, lanes: LanePool, guard: Callable[[], MemoryGuard], live: Callable[[], Live]
) -> EngineHosts:
    """Hosts that look at guard and settings when they need them. Raises OSError for a bad state directory."""
    state = settings.server.state_dir
    workers = Workers(
        WorkerSettings(
            state / SCRATCH,
            state / PREFIXES,
            ceiling=lambda: guard().limits.ceiling_bytes,
            patience=lambda: live().settings.supervision.answer_timeout,
            measure=process_bytes,
            has_ended=has_ended,
            log_level=lambda: logging.getLogger().level,
        ),
        lanes.turns,
    )
    workers.open()
    return EngineHosts(lanes, workers)


def _keeps_prefixes(engine: EngineSettings) -> bool:
    return engine.isolation == "process" and engine.prefix_cache_disk != "off"


def needs_mlx_here(settings: Settings) -> bool:
    """Whether any model may run in the daemon's own process."""
    engines = [settings.engine, *(settings.engine_for(entry.name) for entry in settings.model)]
    return any(engine.isolation == "thread" for engine in engines)
