"""Lanes: a small pool of long-lived threads, each with an MLX stream, lent to one engine at a time.

A thread per load would leak operating-system threads and resident memory, so a lane outlives its engines.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack

from mlxd.engines.backend import Backend, BackendFactory
from mlxd.engines.crowd import Crowd
from mlxd.engines.engine_run import EngineRun, RunPlan
from mlxd.engines.image_threads import ImageThreads
from mlxd.engines.lane_run import LaneRun
from mlxd.engines.turns import Turns

# Seconds that giving free buffers back may take. A lane that is still at it is not lent again.
RECLAIM_PATIENCE = 30.0

# A job gets a callable rather than the backend: importing MLX can fail, and the job knows whom to tell.
Job = Callable[[Callable[[], Backend]], None]


class Lane:
    """One thread and its MLX stream; jobs handed to it never overlap and must not raise."""

    def __init__(self, name: str, factory: BackendFactory) -> None:
        self._factory = factory
        self._backend: Backend | None = None
        self._scope = ExitStack()
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    @property
    def name(self) -> str:
        return self._thread.name

    @property
    def is_open(self) -> bool:
        """Whether this lane has imported its backend."""
        return self._backend is not None

    def run(self, job: Job) -> None:
        """Queue a job for this lane's thread."""
        self._jobs.put(job)

    def stop(self) -> None:
        """Ask the thread to end after the jobs it has."""
        self._jobs.put(None)

    def join(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds for the thread; True when it has ended."""
        self._thread.join(max(0.0, timeout))
        return not self._thread.is_alive()

    def _main(self) -> None:
        # Leaving the scope clears the thread's streams: without it the process may abort at exit.
        with self._scope:
            while (job := self._jobs.get()) is not None:
                job(self._open)

    def _open(self) -> Backend:
        if self._backend is None:
            backend = self._factory()
            self._scope.enter_context(backend.lane_scope())
            self._backend = backend
        return self._backend


class LanePool:
    """Lends lanes, makes them when none is free, and ends them all. Used from the event loop's thread only.

    `turns`, `crowd` and `images` are for the engines on its lanes.
    """

    def __init__(self, factory: BackendFactory) -> None:
        self.turns = Turns()
        self.crowd = Crowd()
        self.images = ImageThreads()
        self._factory = factory
        self._free: list[Lane] = []
        self._lent: set[Lane] = set()
        self._made = 0

    def engine_run(self, plan: RunPlan) -> EngineRun:
        """A loop that will run on one of these lanes."""
        return LaneRun(self, plan)

    def acquire(self) -> Lane:
        """Lend a lane exclusively; the twin of `release`."""
        lane = self._free.pop() if self._free else self._make()
        self._lent.add(lane)
        return lane

    async def warm_up(self) -> None:
        """Import the backend on a lane, as a load would. Raises what the import raises."""

        def open_only(open_backend: Callable[[], Backend]) -> None:
            open_backend()

        await self._run_on_lane(open_only)

    async def reclaim(self) -> None:
        """Give MLX's free buffers back to the system, while engines go on; nothing happens before a first load.

        Raises TimeoutError when it does not end.
        """
        if any(lane.is_open for lane in (*self._free, *self._lent)):
            async with asyncio.timeout(RECLAIM_PATIENCE):
                await self._run_on_lane(lambda open_backend: open_backend().reclaim())

    def release(self, lane: Lane) -> None:
        """Take a lane back once its engine has dropped everything on it."""
        self._lent.remove(lane)
        self._free.append(lane)

    def abandon(self, lane: Lane) -> None:
        """Give up a lane whose engine missed its teardown deadline; it is never lent again."""
        self._lent.remove(lane)
        lane.stop()

    def close(self, timeout: float) -> bool:
        """End every lane, and the threads of images, within `timeout` seconds; False when one is still busy. Blocks."""
        lanes = [*self._free, *self._lent]
        for lane in lanes:
            lane.stop()
        deadline = time.monotonic() + timeout
        ended = [lane.join(deadline - time.monotonic()) for lane in lanes]
        return self.images.close(deadline - time.monotonic()) and all(ended)

    async def _run_on_lane(self, act: Job) -> None:
        lane = self.acquire()
        done: Future[None] = Future()

        def job(open_backend: Callable[[], Backend]) -> None:
            if not done.set_running_or_notify_cancel():
                return
            try:
                act(open_backend)
            except BaseException as error:  # noqa: BLE001 - handed over whole
                done.set_exception(error)
            else:
                done.set_result(None)

        lane.run(job)
        try:
            await asyncio.wrap_future(done)
        finally:
            # whoever is cancelled, or out of patience, leaves a lane behind that may be stuck
            (self.release if done.done() else self.abandon)(lane)

    def _make(self) -> Lane:
        self._made += 1
        return Lane(f"lane-{self._made}", self._factory)
