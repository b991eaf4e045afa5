"""Keeps on the disk what the next start must know if this run does not end in order."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import structlog
from msgspec import structs

from mlxd.daemon.breadcrumbs_file import FILE, RecordUnread, read_record, write_record
from mlxd.daemon.breadcrumbs_record import (
    VERSION,
    ResidentModel,
    RunRecord,
    Suspect,
    machine_restarted,
    suspects_after,
)
from mlxd.daemon.breadcrumbs_work import AnyRequest, WorkBook, fingerprints
from mlxd.daemon.breadcrumbs_writer import PATIENCE, RecordWriter
from mlxd.registry.reader import RegistryReader
from mlxd.registry.states import State

log = structlog.stdlib.get_logger(__name__)

PAUSE = 5.0
"""Seconds between two writes of what nobody waits for; a model that was idle for less still counts as at work."""


class Breadcrumbs:
    """The record of this run, and what that of the last one says. Used on the event loop only.

    1. Before a load begins, and before an idle model begins to work, that is on the disk. All else follows within
       seconds, so that steady traffic seldom writes.
    2. A disk that is full or does not answer fails nothing, and is waited for once, for half a second: after that
       nobody waits until it works again.

    `write` puts a record on the disk, and blocks.
    """

    def __init__(
        self,
        write: Callable[[RunRecord], None],
        boot: str | None,
        last: RunRecord | None = None,
        *,
        pause: float = PAUSE,
        patience: float = PATIENCE,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._last = last
        self._boot = boot
        self._pause = pause
        self._wall_clock = wall_clock
        self._suspects = {} if last is None else suspects_after(last, boot)
        self._to_restore = () if last is None else last.resident
        self._registry: RegistryReader | None = None
        self._work = WorkBook(pause, clock)
        self._writer = RecordWriter(write, self._compose, patience)
        self._told = RunRecord(VERSION, boot, 0.0)
        self._left_ready: tuple[ResidentModel, ...] | None = None
        self._ended = False
        self._stale, self._hurry = asyncio.Event(), asyncio.Event()

    @classmethod
    def read(cls, folder: Path, boot: str | None) -> Breadcrumbs:
        """Of a state directory. With a file that says nothing, which is logged, nothing is known of the last run."""
        path = folder / FILE
        try:
            last = read_record(path)
        except RecordUnread as error:
            log.warning("breadcrumbs.unread", message=str(error))
            last = None
        return cls(partial(write_record, path), boot, last)

    # -- the last run --------------------------------------------------------------------------------------------

    def suspect(self, model: str) -> Suspect | None:
        """Why a start has to do without a model, None if it need not."""
        suspect = self._suspects.get(model)
        return suspect if suspect is not None and suspect.skip else None

    @property
    def to_restore(self) -> tuple[ResidentModel, ...]:
        """The models that were ready when the last run ended, the last used first; none once they are `settled`."""
        return self._to_restore

    def settled(self) -> None:
        """What comes back has come back. Until then a restart wants them all again."""
        self._to_restore = ()
        self._stale.set()

    # -- this run ------------------------------------------------------------------------------------------------

    def follow(self, registry: RegistryReader) -> None:
        """The models are those of this registry."""
        self._registry = registry

    def on_models(self, names: Collection[str]) -> None:
        """These models changed."""
        self._stale.set()
        loads = self._told.loading
        if any(name in loads for name in names) and not set(loads).issubset(self._names(State.LOADING)):
            self._hurry.set()

    async def before_load(self, _: str) -> None:
        """A model is about to load, and the registry says so already; returns when that is on the disk."""
        await self._save_unless_failing()

    @asynccontextmanager
    async def at_work(self, model: str, requests: Sequence[AnyRequest]) -> AsyncIterator[None]:
        """Meanwhile a model is at work on these requests. When this is left without an error, it has served well."""
        traced = self._work.begin(model, requests)
        try:
            if model in self._told.at_work:
                self._stale.set()
            else:
                await self._save_unless_failing()
            yield
            self._suspects.pop(model, None)
        finally:
            self._work.end(model, traced)
            self._stale.set()

    def closing(self) -> None:
        """The daemon stops: a restart brings back the models that are ready now."""
        self._left_ready = self._ready()

    async def end(self) -> None:
        """The run has ended in order."""
        self._ended = True
        await self._writer.save(self._tell)

    async def run(self) -> None:
        """Log how the last run ended, and bring what nobody waits for to the disk until the daemon stops."""
        self._log_unclean_end()
        await self._writer.save(self._tell)
        while True:
            await self._stale.wait()
            self._stale.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause):
                    await self._hurry.wait()
            self._hurry.clear()
            await self._writer.save(self._tell)
            if self._writer.failing or self._work.lingers:
                self._stale.set()

    async def _save_unless_failing(self) -> None:
        if self._writer.failing:
            self._stale.set()
        else:
            await self._writer.save(self._tell)

    def _tell(self, record: RunRecord) -> None:
        self._told = record

    def _compose(self) -> Callable[[], RunRecord]:
        ready = self._ready() if self._left_ready is None else self._left_ready
        names = {model.name for model in ready}
        resident = (*ready, *(model for model in self._to_restore if model.name not in names))
        loading = () if self._ended else self._names(State.LOADING)
        record = RunRecord(
            VERSION,
            self._boot,
            self._wall_clock(),
            ended=self._ended,
            loading=loading,
            resident=resident,
            suspects=dict(self._suspects),
        )
        latest = {} if self._ended else self._work.latest()
        # whoever is told of no more must wait again, even if nobody hears how this write went
        told = {name: known for name, known in self._told.at_work.items() if name in latest}
        self._told = structs.replace(self._told, at_work=told)
        return lambda: structs.replace(record, at_work=fingerprints(latest, told))

    def _names(self, state: State) -> tuple[str, ...]:
        return () if self._registry is None else self._registry.names(state)

    def _ready(self) -> tuple[ResidentModel, ...]:
        if self._registry is None:
            return ()
        kinds = {name: self._registry.spec(name).kind for name in self._registry.names(State.READY)}
        return tuple(ResidentModel(name, str(kind)) for name, kind in kinds.items())

    def _log_unclean_end(self) -> None:
        last = self._last
        if last is None or last.ended:
            return
        log.warning(
            "daemon.unclean_end",
            machine_restarted=machine_restarted(last, self._boot),
            at=last.at,
            loading=last.loading,
            at_work=last.at_work,
        )
