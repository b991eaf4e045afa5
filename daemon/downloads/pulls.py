"""All downloads of this daemon: a few at a time, the others in turn, and the last ones that ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

import structlog

from mlxd.daemon.disk_thread import DiskStuck, DiskThread
from mlxd.daemon.downloads.child import Download, NotStarted, child
from mlxd.daemon.downloads.messages import Done, DownloadFailed, Failed, Found, Job, Progress
from mlxd.daemon.downloads.places import clean
from mlxd.daemon.downloads.pull import Pull, PullStatus
from mlxd.daemon.downloads.room import check_room
from mlxd.registry.errors import ShuttingDown

log = structlog.stdlib.get_logger(__name__)

# Downloads at a time, and that may wait; downloads that ended and are remembered.
AT_A_TIME = 2
MOST_WAITING = 100
REMEMBERED = 50
# Seconds without a byte after which a download has failed.
STALL = 60.0


class TooManyPulls(Exception):
    """As many downloads wait as may."""


async def _nobody() -> None:
    return


class Pulls:
    """Numbered from 1 on, each number once. Used on the event loop only.

    `models_dirs` gives the folders of models, the first of which gets what is downloaded; `adopt` is awaited when a
    model is in its place. `on_change` is called with the number of a download after each change of it.
    """

    def __init__(
        self,
        models_dirs: Callable[[], Sequence[Path]] = tuple,
        adopt: Callable[[], Awaitable[None]] = _nobody,
        *,
        download: Download = child,
        stall: float = STALL,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.on_change: Callable[[int], None] = lambda _: None
        self._models_dirs = models_dirs
        self._adopt = adopt
        self._download = download
        self._stall = stall
        self._clock = clock
        self._wall_clock = wall_clock
        self._pulls: dict[int, Pull] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._last = 0
        self._closed = False

    def statuses(self) -> list[PullStatus]:
        """All that are known, by number."""
        return [pull.status for pull in self._pulls.values()]

    def status(self, number: int) -> PullStatus | None:
        """One of them; None for a number that was never given, or is forgotten."""
        pull = self._pulls.get(number)
        return None if pull is None else pull.status

    def start(self, repo: str, revision: str, name: str) -> tuple[PullStatus, bool]:
        """Download a repository; whether that is new, or the same download is under way already.

        There has to be a folder of models. Raises TooManyPulls and ShuttingDown.
        """
        if self._closed:
            raise ShuttingDown
        job = Job(repo, revision, name, str(self._models_dirs()[0]), self._stall)
        live = [pull for pull in self._pulls.values() if not pull.is_over]
        for pull in live:
            if pull.job == job:
                return pull.status, False
        if len(live) >= AT_A_TIME + MOST_WAITING:
            raise TooManyPulls(f"{len(live)} downloads run or wait already; cancel some or wait for them")
        self._last += 1
        begun = self._pulls[self._last] = Pull(self._last, job, self._wall_clock())
        self.on_change(self._last)
        self._begin_next()
        return begun.status, True

    async def cancel(self, number: int) -> PullStatus | None:
        """End a download and keep what came; None for a number that is not known. One that is over stays as it is."""
        pull = self._pulls.get(number)
        if pull is None:
            return None
        task = self._tasks.get(number)
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
        elif not pull.is_over:
            self._cancelled(pull)
            self._forget_old()
        return pull.status

    async def run(self) -> None:
        """Delete what unfinished downloads and deletions of earlier days left in the folders of models."""
        folders, now, disk = tuple(self._models_dirs()), self._wall_clock(), DiskThread()
        try:
            gone = await disk.run(lambda: [place for folder in folders for place in clean(folder, now)])
        except DiskStuck as error:
            log.warning("pull.clean_stuck", message=str(error))
            return
        for place in gone:
            log.info("pull.forgotten", path=str(place))

    async def close(self, patience: float) -> bool:
        """End all within so many seconds and begin none any more; False if some could not be ended."""
        self._closed = True
        tasks = set(self._tasks.values())
        for task in tasks:
            task.cancel()
        if not tasks:
            return True
        _, left = await asyncio.wait(tasks, timeout=patience)
        return not left

    def _begin_next(self) -> None:
        """Begin what may: in turn, and never two that have files in common."""
        for number, pull in self._pulls.items():
            if len(self._tasks) >= AT_A_TIME or self._closed:
                return
            busy = {self._pulls[running].job.repo for running in self._tasks}
            if not pull.is_over and number not in self._tasks and pull.job.repo not in busy:
                task = asyncio.create_task(self._run(pull), name=f"pull.{number}")
                self._tasks[number] = task
                task.add_done_callback(partial(self._ended, pull))

    async def _run(self, pull: Pull) -> None:
        number, job = pull.status.id, pull.job
        log.info("pull.started", n=number, repo=job.repo, revision=job.revision, model=job.name)
        pull.begin()
        self.on_change(number)
        try:
            async with self._download(job) as messages:
                async for message in messages:
                    await self._take(pull, message)
        except DownloadFailed as error:
            self._failed(pull, error.failed)
        except NotStarted as error:
            self._failed(pull, Failed("crashed", f"no process can be started for it: {error}"))
        # Whatever a process says or does, the daemon goes on.
        except Exception:
            log.exception("pull.broke", n=number)
            self._failed(pull, Failed("crashed", "the download broke off, the log says why; pull again, it goes on"))

    async def _take(self, pull: Pull, message: Found | Progress | Done | Failed) -> None:
        match message:
            case Found():
                pull.found(message, self._clock())
                self._check_room(pull, message.free_bytes)
            case Progress():
                pull.moved(message, self._clock())
            case Failed():
                self._failed(pull, message)
            case Done():
                try:
                    await self._adopt()
                finally:  # it is there, whatever becomes of this
                    self._done(pull)
        self.on_change(pull.status.id)

    def _check_room(self, pull: Pull, free: int | None) -> None:
        """What others are still to bring takes room that is free now. Raises DownloadFailed."""
        running = [self._pulls[number] for number in self._tasks]
        others = [one for one in running if one is not pull and one.job.models_dir == pull.job.models_dir]
        if free is not None:
            check_room(pull.job, pull.bytes_left, free, sum(one.bytes_left for one in others))

    def _done(self, pull: Pull) -> None:
        pull.done(self._wall_clock())
        ended = pull.status
        seconds = round(self._wall_clock() - ended.started_at, 3)
        log.info("pull.finished", n=ended.id, model=ended.name, bytes=ended.bytes_total, seconds=seconds)

    def _failed(self, pull: Pull, failed: Failed) -> None:
        if pull.is_over:
            return
        pull.failed(failed, self._wall_clock())
        log.warning("pull.failed", n=pull.status.id, reason=failed.reason, message=failed.message)

    def _cancelled(self, pull: Pull) -> None:
        pull.cancelled(self._wall_clock())
        log.info("pull.cancelled", n=pull.status.id, bytes=pull.status.bytes_done)
        self.on_change(pull.status.id)

    def _ended(self, pull: Pull, _: asyncio.Task[None]) -> None:
        del self._tasks[pull.status.id]
        if not pull.is_over:
            self._cancelled(pull)
        self.on_change(pull.status.id)
        self._forget_old()
        self._begin_next()

    def _forget_old(self) -> None:
        over = [number for number, known in self._pulls.items() if known.is_over]
        for old in over[:-REMEMBERED]:
            del self._pulls[old]
            self.on_change(old)
