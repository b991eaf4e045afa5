"""Kept prompt prefixes give way to models and prompts: they are trimmed before anybody is evicted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import structlog

from mlxd.engines.engine import Engine

log = structlog.stdlib.get_logger(__name__)

# Seconds for an engine to finish its step and trim; one that is stuck must not hold a load up.
PATIENCE = 10.0


class Prefixes:
    """`engines` gives the loaded engines by name, the least recently used first."""

    def __init__(self, engines: Callable[[], Iterable[tuple[str, Engine]]]) -> None:
        self._engines = engines

    async def free(self, short: int) -> int:
        """Free about `short` bytes, or all that are kept; the bytes that were freed."""
        freed = 0
        for name, engine in list(self._engines()):
            if freed >= short:
                break
            held = engine.stats().prefix_cache_bytes
            if held:
                await _trim(name, engine, max(0, held - (short - freed)))
                freed += max(0, held - engine.stats().prefix_cache_bytes)
        return freed


async def _trim(name: str, engine: Engine, max_bytes: int) -> None:
    try:
        async with asyncio.timeout(PATIENCE):
            await engine.trim_prefix_cache(max_bytes)
    except TimeoutError:
        log.warning("prefix_cache.trim_stuck", model=name, seconds=PATIENCE)
