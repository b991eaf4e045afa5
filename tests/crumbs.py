"""A disk for breadcrumbs that a test holds, fails and listens to, and a registry to have breadcrumbs of."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from fake_engine import Workshop

from mlxd.daemon.breadcrumbs_record import RunRecord
from mlxd.engines.types import Request, SamplingParams
from mlxd.registry.registry import ModelRegistry
from mlxd.registry.residency import MemoryReading, Policy
from mlxd.registry.spec import ModelSpec

PATIENCE = 20.0


class Disk:
    """Each write comes out of `written` in order. While `works` is not set a write waits; `error` is raised by it."""

    def __init__(self) -> None:
        self.written: asyncio.Queue[RunRecord] = asyncio.Queue()
        self.tries: asyncio.Queue[RunRecord] = asyncio.Queue()
        self.works = threading.Event()
        self.works.set()
        self.error: Exception | None = None
        self._loop = asyncio.get_running_loop()

    def __call__(self, record: RunRecord) -> None:
        self._loop.call_soon_threadsafe(self.tries.put_nowait, record)
        assert self.works.wait(PATIENCE)
        if self.error is not None:
            raise self.error
        self._loop.call_soon_threadsafe(self.written.put_nowait, record)

    async def next(self) -> RunRecord:
        """The next record that is on the disk."""
        async with asyncio.timeout(PATIENCE):
            return await self.written.get()

    async def tried(self) -> RunRecord:
        """The next record that somebody began to write."""
        async with asyncio.timeout(PATIENCE):
            return await self.tries.get()


def registry_of(workshop: Workshop, *specs: ModelSpec, limit: int = 100, **policy: int) -> ModelRegistry:
    """A registry of fake engines, with so many bytes for models."""
    return ModelRegistry(
        specs,
        Policy(**policy),  # type: ignore[arg-type]
        workshop,
        lambda *, fresh: MemoryReading(limit, "memory.ceiling", 0, 0),
        load_need=lambda spec: spec.weight_bytes,
    )


def model(name: str, size: int = 40, **options: object) -> ModelSpec:
    return ModelSpec(name, Path(name), weight_bytes=size, **options)  # type: ignore[arg-type]


def asking(*tokens: int, name: str = "r") -> Request:
    return Request(name, tokens, SamplingParams())
