"""Brings records of the run to the disk, for those who wait for it and those who do not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog
from msgspec import structs

from mlxd.daemon.breadcrumbs_record import RunRecord
from mlxd.daemon.disk_thread import DiskStuck, DiskThread

log = structlog.stdlib.get_logger(__name__)

PATIENCE = 0.5
"""Seconds that anybody waits for a write."""


class RecordWriter:
    """One write at a time; all who come during one share the next. Used on the event loop only.

    `write` puts a record on the disk, and blocks. `compose` is called on the event loop, and gives what makes the
    record on the thread that writes it.
    """

    def __init__(
        self,
        write: Callable[[RunRecord], None],
        compose: Callable[[], Callable[[], RunRecord]],
        patience: float = PATIENCE,
    ) -> None:
        self.failing = False
        self._write_out = write
        self._compose = compose
        self._disk = DiskThread(patience)
        self._on_disk: RunRecord | None = None
        self._turn = asyncio.Lock()
        self._asked = self._answered = 0

    async def save(self, told: Callable[[RunRecord], None]) -> None:
        """Write what holds now. `told` gets what is on the disk then; it is not called when that fails.

        Never raises: `failing` says how the last write went, and the first one that fails is logged.
        """
        self._asked += 1
        mine = self._asked
        try:
            async with self._turn:
                # whoever had the turn before may have written this as well
                if self._answered < mine:
                    asked, make = self._asked, self._compose()
                    told(await self._disk.run(lambda: self._write(make())))
                    self._answered = asked
        # Whatever a disk or a lack of threads does, it must not reach a load or a request.
        except Exception as error:  # noqa: BLE001
            if not self.failing:
                reason = "the disk does not answer" if isinstance(error, DiskStuck) else repr(error)
                log.warning("breadcrumbs.unwritten", error=reason)
            self.failing = True
        else:
            self.failing = False

    def _write(self, record: RunRecord) -> RunRecord:
        """Only the disk's thread comes here. What is there already is not written again."""
        known = self._on_disk
        if known is None or structs.replace(record, at=known.at) != known:
            self._write_out(record)
            self._on_disk = record
        return record
