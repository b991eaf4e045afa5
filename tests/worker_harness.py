"""Engines in worker processes, faults that are made for real, and a look at what is left of them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil

from mlxd.engines.core import EngineCore
from mlxd.engines.generation import Generation
from mlxd.engines.turns import Turns
from mlxd.engines.types import EngineConfig, Request, RequestOutput, SamplingParams
from mlxd.engines.worker.worker_settings import WorkerSettings
from mlxd.engines.worker.workers import Workers
from mlxd.memory.probe import has_ended

# Seconds of silence after which a worker is killed.
PATIENCE = 4.0


@asynccontextmanager
async def worker_pool(folder: Path, **settings: Any) -> AsyncIterator[Workers]:
    """Workers that leave no process behind."""
    options = {"patience": lambda: PATIENCE, "has_ended": has_ended, **settings}
    workers = Workers(WorkerSettings(folder / "scratch", folder / "prefixes", **options), Turns())
    workers.open()
    try:
        yield workers
    finally:
        assert await workers.close(20)
        assert not list((folder / "scratch").iterdir())


def worker_engine(path: Path, workers: Workers, **options: Any) -> EngineCore:
    """A text engine that is not loaded yet; `on_dead` and such go to it, all else to its config."""
    core = {name: options.pop(name) for name in ("memory", "on_dead", "prefill_eviction_callback") if name in options}
    config = EngineConfig(path.name, path, **{"context_length": 2048, "prefill_chunk": 64, **options})
    return EngineCore(config, workers, **core)


async def asked(engine: EngineCore, text: str, sampling: SamplingParams, request_id: str) -> Request:
    """A chat's request."""
    chat = [{"role": "user", "content": text}]
    tokens = await asyncio.to_thread(engine.tokenizer.encode_chat, chat)
    return Request(request_id, tuple(tokens), sampling)


async def read(outputs: Generation) -> list[RequestOutput]:
    """All outputs that are left."""
    return [output async for output in outputs]


async def until(true: Callable[[], bool], within: float = 10.0) -> None:
    """Wait until a process of the machine is as it should be: there is no event for that."""
    async with asyncio.timeout(within):
        while not true():
            await asyncio.sleep(0.005)


def pid_of(engine: EngineCore) -> int:
    pid = engine.pid
    assert pid is not None
    return pid


def is_gone(pid: int) -> bool:
    """Whether there is no such process, not even as a zombie."""
    return not psutil.pid_exists(pid)


def children() -> list[int]:
    """Workers that this process has started and that are there, and zombies."""
    return [child.pid for child in psutil.Process().children() if "serve" not in _command(child)]


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:  # it is gone, or a zombie
        return []


def send(pid: int, number: signal.Signals) -> None:
    os.kill(pid, number)
