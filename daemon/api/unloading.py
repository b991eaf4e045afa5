"""How a client's call to unload a model ends in time for that client."""

from __future__ import annotations

import asyncio
import contextlib

from mlxd.registry.errors import ModelRemoved
from mlxd.registry.registry import ModelRegistry

# Seconds that such a call waits; clients wait half a minute. A model that is in use longer goes on draining.
PATIENCE = 10.0


async def unload(registry: ModelRegistry, model: str) -> None:
    """Let a model go, and wait a while until it is gone. One that is not there is gone already."""
    with contextlib.suppress(TimeoutError, ModelRemoved):
        async with asyncio.timeout(PATIENCE):
            await registry.unload(model)
