"""Notices models that appear in the folders, vanish or change, by a look at names, sizes and times now and then."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog

from mlxd.daemon.catalog_merge import Settled
from mlxd.daemon.disk_thread import DiskStuck, DiskThread
from mlxd.daemon.live import Live
from mlxd.daemon.model_files import Stamp, folder_stamp, model_folders
from mlxd.daemon.settings import Settings
from mlxd.registry.errors import ShuttingDown
from mlxd.registry.hub_cache import cached_repos, snapshot_of

log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Look:
    """The model folders of one moment with what their files look like, and what could not be read."""

    stamps: Mapping[Path, Stamp]
    unreadable: frozenset[Path]

    def reads(self, path: Path) -> bool:
        """Whether nothing hindered the look at this folder."""
        return not self.unreadable or self.unreadable.isdisjoint((path, *path.parents))

    def agrees(self, other: Look, path: Path) -> bool:
        """Whether both saw the same there, which may be nothing."""
        return self.reads(path) and other.reads(path) and self.stamps.get(path) == other.stamps.get(path)


def look_at(settings: Settings, hf_cache: Path | None) -> Look:
    """Look at every folder from which a model could come. Reads no file, and raises nothing for what is not there."""
    stamps: dict[Path, Stamp] = {}
    unreadable: set[Path] = set()
    for path in _folders(settings, hf_cache, unreadable):
        try:
            stamps[path] = folder_stamp(path)
        except (FileNotFoundError, NotADirectoryError):
            continue  # gone since, or never there
        except OSError:
            unreadable.add(path)
    return Look(stamps, frozenset(unreadable))


def _folders(settings: Settings, hf_cache: Path | None, unreadable: set[Path]) -> Iterator[Path]:
    yield from itertools.chain.from_iterable(model_folders(folder, unreadable) for folder in settings.models.dirs)
    if hf_cache is not None and settings.models.hf_cache:
        yield from _snapshots(hf_cache, unreadable)
    for entry in settings.model:
        named = snapshot_of(hf_cache, entry.repo) if hf_cache is not None and entry.repo is not None else entry.path
        yield from (path for path in (named, *entry.adapters.values()) if path is not None)


def _snapshots(hf_cache: Path, unreadable: set[Path]) -> Iterator[Path]:
    if not os.access(hf_cache, os.R_OK | os.X_OK):
        unreadable.add(hf_cache)
    yield from (snapshot for _, snapshot in cached_repos(hf_cache))


def _agree(looks: Sequence[Look], path: Path) -> bool:
    return all(one.agrees(next_one, path) for one, next_one in itertools.pairwise(looks))


class ModelWatch:
    """Looks, and asks for a refresh when a folder changed and then stayed the same for one look.

    `refresh` takes what tells settled folders and gives the models whose change has to wait; `in_memory` says whether
    one still has to. `seen` is a look from before the models that are known were listed.
    """

    def __init__(
        self,
        live: Live,
        hf_cache: Path | None,
        refresh: Callable[[Callable[[], Settled]], Awaitable[frozenset[str]]],
        in_memory: Callable[[str], bool],
        seen: Look,
    ) -> None:
        self._live = live
        self._hf_cache = hf_cache
        self._refresh = refresh
        self._in_memory = in_memory
        self._seen = seen
        self._known = dict(seen.stamps)
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
        changed = {path for path in {**self._known, **now.stamps} if self._known.get(path) != now.stamps.get(path)}
        settled = {path for path in changed if now.agrees(seen, path)}
        if not settled and all(map(self._in_memory, self._deferred)):
            return
        looks = [seen, now]

        def settle() -> Settled:
            looks.append(self._look())
            return partial(_agree, looks)

        self._deferred = await self._refresh(settle)
        done = {path for path in settled if _agree(looks, path)}
        self._known = {path: stamp for path, stamp in self._known.items() if path not in done}
        self._known |= {path: now.stamps[path] for path in done if path in now.stamps}

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
