"""Shows the progress of a load while it runs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from mlxd.daemon.cli.answers import view
from mlxd.daemon.cli.bars import LABEL_WIDTH, byte_bar
from mlxd.daemon.cli.client import DaemonClient, model_path
from mlxd.daemon.cli.failures import CommandFailed
from mlxd.daemon.cli.plain import one_line
from mlxd.daemon.cli.views import ModelView, duration

POLL_INTERVAL = 0.2
"""Seconds between two looks at the load."""


@asynccontextmanager
async def load_bar(client: DaemonClient, model: str) -> AsyncIterator[None]:
    """Show a bar on standard error as long as the block runs, if that is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    watcher = asyncio.create_task(_watch(client, model), name="load.watch")
    try:
        yield
    finally:
        watcher.cancel()
        await asyncio.wait({watcher})
    if not watcher.cancelled():
        watcher.result()


async def _watch(client: DaemonClient, model: str) -> None:
    with byte_bar() as progress:
        task = progress.add_task(one_line(model, LABEL_WIDTH), total=None, note="")
        while True:
            seen = await _look(client, model)
            if seen is not None:
                label = f"{one_line(model, LABEL_WIDTH)} {seen.state}"
                load = seen.load
                eta = f"eta {duration(load.eta_s)}" if load is not None and load.eta_s is not None else ""
                done, total = (load.bytes_done, load.bytes_total or None) if load is not None else (0, None)
                progress.update(task, description=label, completed=done, total=total, note=eta)
            await asyncio.sleep(POLL_INTERVAL)


async def _look(client: DaemonClient, model: str) -> ModelView | None:
    """The model now; None when it cannot be told, which the load itself will explain."""
    try:
        return view(await client.get(model_path(model)), ModelView)
    except CommandFailed:
        return None
