"""Notices models that appear in the folders, vanish or change, by a look at names, sizes and times now and then."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

import structlog

from mlxd.daemon.catalog_merge import Settled
from mlxd.daemon.disk_thread import DiskStuck, DiskThread
from mlxd.daemon.folder_look import Look, look_at
from mlxd.daemon.live import Live
from mlxd.registry.errors import ShuttingDown

log = structlog.stdlib.get_logger(__name__)


def _agree(looks: Sequence[Look], path: Path) -> bool:
    return all(one.agrees(next_one, path) for one, next_one in itertools.pairwise(looks))


class ModelWatch:
    """Looks, and asks for a refresh when a folder is not what the catalog was made from, and the same for one look.

    `refresh` takes what tells settled folders and gives the models whose change has to wait; `in_memory` says whether
    one still has to.
    """

    def __init__(
        self,
        live: Live,
        hf_cache: Path | None,
        refresh: Callable[[Callable[[], Settled]], Awaitable[frozenset[str]]],
        in_memory: Callable[[str], bool],
    ) -> None:
        self._live = live
        self._hf_cache = hf_cache
        self._refresh = refresh
        self._in_memory = in_memory
        self._seen = live.catalog.basis.seen
        self._deferred: frozenset[str] = frozenset()
        self._hurry = asyncio.Event()
        self._disk = DiskThread()
        self._stuck = False

    def hurry(self) -> None:
        """Look at once; a changed interval counts from then on."""
        self._hurry.set()

    async def run(self) -> None:
        """Look every `models.watch_interval` seconds until the daemon stops."""
        while True:
            await self._pause()
            if self._live.settings.models.watch_interval is None:
                continue
            try:
                await self.look()
                self._stuck = False
            except ShuttingDown:
                return
            except DiskStuck as error:
                self._tell_stuck(error)
            # Whatever a disk does, the next look may be better.
            except Exception:
                log.exception("models.watch_broke")

    async def look(self) -> None:
        """Look once, and take over what is settled. Raises ShuttingDown and DiskStuck."""
        seen, now = self._seen, await self._disk.run(self._look)
        self._seen = now
        known = self._live.catalog.basis.seen.stamps
        changed = {path for path in {**known, **now.stamps} if known.get(path) != now.stamps.get(path)}
        if not any(now.agrees(seen, path) for path in changed) and all(map(self._in_memory, self._deferred)):
            return
        looks = [seen, now]

        def settle() -> Settled:
            looks.append(self._look())
            return partial(_agree, looks)

        self._deferred = await self._refresh(settle)

    async def adopt(self) -> None:
        """Take over at once what was put into its place, or taken away, as a whole: it will not change any more.

        What a disk does not tell now is left to a later look.
        """
        try:
            await self.look()
            await self.look()  # what is the same twice is settled
        except ShuttingDown:
            return
        except DiskStuck as error:
            self._tell_stuck(error)

    def _tell_stuck(self, error: DiskStuck) -> None:
        if not self._stuck:
            log.warning("models.watch_stuck", message=str(error))
        self._stuck = True

    def _look(self) -> Look:
        return look_at(self._live.settings, self._hf_cache)

    async def _pause(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._live.settings.models.watch_interval):
                await self._hurry.wait()
        self._hurry.clear()
