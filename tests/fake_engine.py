"""A programmable engine for the registry: it loads, closes and fails when a test says so. No MLX, no threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from mlxd.engines.errors import EngineDead, LoadError, LoadFailure
from mlxd.engines.generation import Generation
from mlxd.engines.types import (
    EngineConfig,
    EngineLimits,
    EngineStats,
    LoadProgress,
    ModelInfo,
    Request,
    RequestStatus,
)
from mlxd.registry.spec import ModelSpec


@dataclass
class FakeEngine:
    """`loading` and `closing` hold the engine there until they are set; `fail_load` is raised at the end of a load."""

    spec: ModelSpec
    on_dead: Callable[[EngineDead], None]
    loading: asyncio.Event
    closing: asyncio.Event
    fail_load: Exception | None = None
    closes_in_time: bool = True
    cancelled: bool = False
    closed_with: list[Exception] = field(default_factory=list)
    aborted: list[Exception] = field(default_factory=list)
    progress: Callable[[LoadProgress], None] = lambda _: None
    tokenizer: object = None
    prefix_cache_bytes: int = 0
    trims_held: asyncio.Event | None = None
    loaded: bool = False
    retuned: list[EngineLimits] = field(default_factory=list)
    pid: int | None = None

    @property
    def config(self) -> EngineConfig:
        config = EngineConfig(self.spec.name, Path(self.spec.name), 1000)
        return config.with_limits(self.retuned[-1]) if self.retuned else config

    @property
    def info(self) -> ModelInfo:
        return ModelInfo(100, self.spec.weight_bytes)

    async def load(self, on_progress: Callable[[LoadProgress], None] = lambda _: None) -> ModelInfo:
        self.progress = on_progress
        await self.loading.wait()
        if self.cancelled:
            raise LoadError(LoadFailure.CANCELLED, "cancelled")
        if self.fail_load is not None:
            raise self.fail_load
        self.loaded = True
        return self.info

    def cancel_load(self) -> None:
        self.cancelled = True
        self.loading.set()

    def generate(self, request: Request) -> Generation:
        raise NotImplementedError

    def cancel(self, request_id: str) -> bool:
        return False

    def abort_all(self, error: Exception) -> int:
        self.aborted.append(error)
        return 1

    def retune(self, limits: EngineLimits) -> None:
        self.retuned.append(limits)

    async def trim_prefix_cache(self, max_bytes: int) -> None:
        if self.trims_held is not None:
            await self.trims_held.wait()
        self.prefix_cache_bytes = min(self.prefix_cache_bytes, max_bytes)

    def stats(self) -> EngineStats:
        return EngineStats(prefix_cache_bytes=self.prefix_cache_bytes)

    def requests(self) -> tuple[RequestStatus, ...]:
        return ()

    async def close(self, error: Exception, timeout: float) -> bool:
        self.closed_with.append(error)
        await self.closing.wait()
        return self.closes_in_time


@dataclass
class Workshop:
    """Makes fake engines and remembers them. With `hold` set, loads and closes wait for a test."""

    engines: dict[str, list[FakeEngine]] = field(default_factory=dict)
    hold_loads: bool = False
    hold_closes: bool = False
    failures: dict[str, Exception] = field(default_factory=dict)

    def __call__(self, spec: ModelSpec, on_dead: Callable[[EngineDead], None]) -> FakeEngine:
        loading, closing = asyncio.Event(), asyncio.Event()
        if not self.hold_loads:
            loading.set()
        if not self.hold_closes:
            closing.set()
        engine = FakeEngine(spec, on_dead, loading, closing, self.failures.get(spec.name))
        self.engines.setdefault(spec.name, []).append(engine)
        return engine

    def last(self, name: str) -> FakeEngine:
        return self.engines[name][-1]

    def count(self, name: str) -> int:
        return len(self.engines.get(name, []))
