"""A real engine on a real lane, and short ways to ask it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

from mlxd.engines.backend import mlx_backend
from mlxd.engines.core import EngineCore
from mlxd.engines.errors import EngineClosed
from mlxd.engines.lanes import LanePool
from mlxd.engines.types import EngineConfig, Request, RequestOutput, SamplingParams

_ids = count(1)
CORE_OPTIONS = ("memory", "prefill_eviction_callback", "on_dead", "on_freed", "step_lock")
GREEDY = SamplingParams(max_tokens=24, temperature=0)


@asynccontextmanager
async def lane_pool() -> AsyncIterator[LanePool]:
    lanes = LanePool(mlx_backend)
    try:
        yield lanes
    finally:
        assert await asyncio.to_thread(lanes.close, 20)


@asynccontextmanager
async def engine_on(path: Path, lanes: LanePool, **options: Any) -> AsyncIterator[EngineCore]:
    core = {name: options.pop(name) for name in CORE_OPTIONS if name in options}
    config = EngineConfig(path.name, path, **{"context_length": 2048, "prefill_chunk": 128, **options})
    engine = EngineCore(config, lanes, **core)
    await engine.load()
    try:
        yield engine
    finally:
        assert await engine.close(EngineClosed("the test is over"), 20)


def chat(engine: EngineCore, text: str, sampling: SamplingParams = GREEDY) -> Request:
    tokens = engine.tokenizer.encode_chat([{"role": "user", "content": text}])
    return Request(f"r{next(_ids)}", tuple(tokens), sampling)


async def collect(engine: EngineCore, request: Request) -> list[RequestOutput]:
    async with engine.generate(request) as outputs:
        return [output async for output in outputs]


async def answer(engine: EngineCore, text: str, sampling: SamplingParams = GREEDY) -> str:
    outputs = await collect(engine, chat(engine, text, sampling))
    return "".join(output.text for output in outputs)


async def until_idle(engine: EngineCore, within: float = 10.0) -> None:
    """Wait until the engine's own books show nothing live. The books are what is tested, so they are looked at."""
    async with asyncio.timeout(within):
        while engine.stats().running or engine.stats().waiting:
            await asyncio.sleep(0.005)


async def at_rest(engine: EngineCore) -> None:
    """Wait until the lane is done with what has ended: readers are told before prompts are kept and memory freed."""
    await engine.trim_prefix_cache(sys.maxsize)


async def until_live(engine: EngineCore, count: int, within: float = 10.0) -> None:
    """Wait until the engine's own books show so many live requests."""
    async with asyncio.timeout(within):
        while len(engine.requests()) < count:
            await asyncio.sleep(0.002)


async def until_state(engine: EngineCore, request_id: str, state: str, within: float = 10.0) -> None:
    """Wait until the engine's own books show that request in that state."""
    async with asyncio.timeout(within):
        while not any(one.id == request_id and one.state == state for one in engine.requests()):
            await asyncio.sleep(0.002)
