"""Makes an engine for a model from its settings and what its files say."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from weakref import WeakSet

from mlxd.daemon.engine_hosts import WORKER_BASE, EngineHosts
from mlxd.daemon.live import Live
from mlxd.daemon.settings import EngineSettings, Settings
from mlxd.engines.core import EngineCore, PrefillEvictionCallback
from mlxd.engines.embedding_engine import EmbeddingEngine
from mlxd.engines.errors import EngineDead, MemoryRefusal
from mlxd.engines.memory_share import MemoryShare
from mlxd.engines.shards import Shards
from mlxd.engines.types import EngineConfig, EngineLimits
from mlxd.memory.estimates import kv_bytes
from mlxd.memory.guard import MemoryGuard
from mlxd.registry.spec import ModelKind, ModelSpec

# For a model whose files do not tell, in tokens.
DEFAULT_CONTEXT = 4096
# Tokens of KV cache that a load must find room for beside the weights.
LOAD_KV_TOKENS = 256
# Of the soft limit, for kept prompt prefixes of one model; they give way to everything else.
AUTO_PREFIX_CACHE = 0.1
# Seconds that an unload may take for writing kept prefixes to the disk; an engine that closes too late is lost.
MAX_SPILL = 10.0
# Steps that may fail in a row.
MOST_FAILURES = 3
# What ranks of a model on several hosts run.
RANK = "mlxd.daemon.rank"


@dataclass(frozen=True, slots=True)
class EngineMaker:
    """The registry's engine factory. Each of these gives something for a model by its name: `most` the bytes that its
    prompts could have, `make_room` its prefill-eviction callback, `refused` what is told of requests that memory
    refuses, `freed` what takes the seconds from each of its cancels until memory and slot were free.
    """

    live: Live
    hosts: EngineHosts
    guard: MemoryGuard
    share: MemoryShare
    most: Callable[[str], Callable[[], int | None]]
    make_room: Callable[[str], PrefillEvictionCallback]
    refused: Callable[[str], Callable[[MemoryRefusal], None]]
    freed: Callable[[str], Callable[[float], None]]
    step_lock: threading.Lock | None = None
    _made: WeakSet[EngineCore | EmbeddingEngine] = field(default_factory=WeakSet)

    def __call__(self, spec: ModelSpec, on_dead: Callable[[EngineDead], None]) -> EngineCore | EmbeddingEngine:
        engine = self.live.settings.engine_for(spec.name)
        estimate = self.live.catalog.estimate(spec)
        kind = EmbeddingEngine if spec.kind is ModelKind.EMBEDDING else EngineCore
        made = kind(
            EngineConfig(
                name=spec.name,
                path=spec.path,
                context_length=context_length(spec, engine),
                prefix_cache_bytes=self._prefix_cache_bytes(engine),
                prefix_disk_bytes=0 if engine.prefix_cache_disk == "off" else engine.prefix_cache_disk.bytes or 0,
                kv_bytes_per_token=spec.kv_bytes_per_token,
                attention_heads=estimate.attention_heads,
                itemsize=estimate.itemsize,
                adapter=spec.adapter,
                draft=spec.draft,
                draft_tokens=engine.draft_tokens,
                vision=spec.takes_images,
                shards=self._shards(spec),
                # a step that fails on one rank has been begun on all
                max_step_failures=MOST_FAILURES if spec.shards is None else 1,
            ).with_limits(self._limits(spec.name)),
            self.hosts.host(engine.isolation),
            memory=self.share.stake(spec.name, self.most(spec.name)),
            prefill_eviction_callback=self.make_room(spec.name),
            on_dead=on_dead,
            on_freed=self.freed(spec.name),
            on_refused=self.refused(spec.name),
            step_lock=self.step_lock,
        )
        self._made.add(made)
        return made

    def retune(self) -> None:
        """Give all engines the limits that are in effect now, those that load and those that drain too."""
        for made in list(self._made):
            limits = self._limits(made.config.name)
            if limits != made.config.limits:
                made.retune(limits)

    def _limits(self, name: str) -> EngineLimits:
        settings = self.live.settings
        engine = settings.engine_for(name)
        spill = min(MAX_SPILL, settings.residency.unload_timeout / 2)
        return EngineLimits(
            engine.max_running,
            engine.max_waiting,
            engine.prefill_chunk,
            engine.max_stall,
            spill,
            hold_timeout=settings.residency.queue_timeout,
        )

    def _shards(self, spec: ModelSpec) -> Shards | None:
        if spec.shards is None:
            return None
        patience = self.live.settings.supervision.answer_timeout
        return replace(spec.shards, module=RANK, patience=patience)

    def _prefix_cache_bytes(self, engine: EngineSettings) -> int:
        if engine.prefix_cache == "off":
            return 0
        if engine.prefix_cache == "auto":
            return int(self.guard.limits.soft_bytes * AUTO_PREFIX_CACHE)
        machine = self.guard.reading().footprint.machine_total
        return engine.prefix_cache.resolve(machine)


def context_length(spec: ModelSpec, engine: EngineSettings) -> int:
    """Tokens that a sequence may have: the smaller of what is configured and what the model says."""
    lengths = [length for length in (engine.context_length, spec.context_length) if length > 0]
    return min(lengths, default=DEFAULT_CONTEXT)


def load_need(spec: ModelSpec, settings: Settings) -> int:
    """Bytes that a load must find free: the weights, a little cache to begin with, and a process of its own."""
    ranks = spec.shards.here if spec.shards is not None else 1
    process = ranks * WORKER_BASE if settings.engine_for(spec.name).isolation == "process" else 0
    return spec.weight_bytes + kv_bytes(1, LOAD_KV_TOKENS, spec.kv_bytes_per_token) + process
