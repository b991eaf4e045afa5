"""All worker processes of a daemon."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Collection

from mlxd.engines.engine_run import EngineRun, RunPlan
from mlxd.engines.prefix_files import NAME
from mlxd.engines.turns import Turns
from mlxd.engines.worker.worker_run import WorkerRun
from mlxd.engines.worker.worker_settings import WorkerSettings

# Seconds that a worker may take to give free buffers back.
RECLAIM_PATIENCE = 5.0


class Workers:
    """Makes runs in processes of their own, and knows those that are there. Used on the event loop only; `counters`,
    `base_bytes` and `forget_prefixes` are for other threads too.

    `turns` has the engines at work, of this process too.
    """

    def __init__(self, settings: WorkerSettings, turns: Turns) -> None:
        self._settings = settings
        self._turns = turns
        self._runs: set[WorkerRun] = set()

    def open(self) -> None:
        """Make the folder for what crosses in files; what an earlier daemon left in it is removed. Raises OSError."""
        scratch = self._settings.scratch
        scratch.mkdir(parents=True, exist_ok=True, mode=0o700)
        for left in scratch.iterdir():
            shutil.rmtree(left, ignore_errors=True)

    def forget_prefixes(self, keep: Collection[str]) -> None:
        """Remove what was kept of prompts of all models but these, as far as the disk lets it; for any thread."""
        kept = {self._settings.prefix_folder(name).name for name in keep}
        with contextlib.suppress(OSError):  # there is none
            for folder in self._settings.prefixes.iterdir():
                if folder.name not in kept and NAME.fullmatch(folder.name):
                    shutil.rmtree(folder, ignore_errors=True)

    def engine_run(self, plan: RunPlan) -> EngineRun:
        """A loop that will run in a process of its own."""
        return WorkerRun(plan, self._settings, self._turns, self._runs)

    @property
    def counters(self) -> tuple[int, int, int]:
        """MLX's bytes in all workers: active, in its caches, and the sum of what was active at most."""
        active, cache, peak = 0, 0, 0
        for run in list(self._runs):
            active, cache, peak = active + run.mlx_counters[0], cache + run.mlx_counters[1], peak + run.mlx_counters[2]
        return active, cache, peak

    @property
    def base_bytes(self) -> int:
        """Bytes that all workers take beside their models."""
        return sum(run.base_bytes for run in list(self._runs))

    def base_of(self, models: Collection[str]) -> int:
        """Bytes that the workers of these models take beside them."""
        return sum(run.base_bytes for run in list(self._runs) if run.name in models)

    async def reclaim(self) -> None:
        """Have all of them give free buffers back to the system; one that does not answer is left to itself."""
        waits = [asyncio.create_task(run.reclaim()) for run in self._runs]
        if waits:
            _, late = await asyncio.wait(waits, timeout=RECLAIM_PATIENCE)
            for wait in late:
                wait.cancel()

    def log_from(self, level: int) -> None:
        """Have all of them log from this level on."""
        for run in list(self._runs):
            run.log_from(level)

    async def hold_steps(self, seconds: float) -> bool:
        """Let no step begin until `free_steps`, its twin; whether all that run have ended within so many seconds."""
        held = [run.hold_steps(seconds) for run in list(self._runs)]
        if not held:
            return True
        done, late = await asyncio.wait(held, timeout=seconds)
        return not late and all(one.result() for one in done)

    def free_steps(self) -> None:
        """Let steps begin again."""
        for run in list(self._runs):
            run.free_steps()

    async def close(self, timeout: float) -> bool:
        """Kill those that are left, and wait until they are gone; False when one is not within `timeout` seconds."""
        runs = list(self._runs)
        for run in runs:
            run.abandon()
        ends = [asyncio.create_task(run.over()) for run in runs]
        if not ends:
            return True
        _, late = await asyncio.wait(ends, timeout=timeout)
        for end in late:
            end.cancel()
        return not late
