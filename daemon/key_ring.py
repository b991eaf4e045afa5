"""The API keys in effect, which follow their file while the daemon runs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from mlxd.daemon.config_errors import ConfigError
from mlxd.daemon.disk_thread import DiskStuck, DiskThread
from mlxd.daemon.keys import ApiKey, find_key
from mlxd.daemon.keys_file import read_keys

log = structlog.stdlib.get_logger(__name__)

LOOK_INTERVAL = 1.0
"""Seconds between two looks at the file."""

MAX_PROBLEMS = 20
"""Problems of one file that are logged."""

Stamp = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Found:
    """What a look found: a file by its stamp, and its keys or what is wrong with them."""

    stamp: Stamp
    keys: tuple[ApiKey, ...] = ()
    error: ConfigError | None = None


class KeyRing:
    """Who may use the daemon. Used on the event loop only, once it is made.

    1. No key was ever there: nobody needs one, and `is_open` says so. Only loopback addresses are served like that.
    2. Once a key was there, everybody needs one until the daemon ends, even when the file is emptied or gone: then no
       key is right. A daemon never becomes open by itself.
    3. A file that is not right changes nothing: the keys that were read before stay.
    """

    def __init__(self, path: Path, keys: Sequence[ApiKey] = ()) -> None:
        self._path = path
        self._keys = tuple(keys)
        self._stamp: Stamp = (-1,)  # no file's, so that the first look reads
        self._had_keys = bool(keys)
        self._disk = DiskThread()
        self._complaint = ""

    @classmethod
    def read(cls, path: Path) -> KeyRing:
        """The keys in a file. Raises ConfigError."""
        return cls(path, read_keys(path))

    @property
    def is_open(self) -> bool:
        """Whether nobody needs a key."""
        return not self._had_keys

    @property
    def keys(self) -> Sequence[ApiKey]:
        """Those in effect."""
        return self._keys

    def find(self, secret: str) -> ApiKey | None:
        """The key with this secret."""
        return find_key(self._keys, secret)

    def holds(self, key: ApiKey | None) -> bool:
        """Whether who came with this key would still be let in with it; None is somebody without one."""
        return self.is_open if key is None else key in self._keys

    async def run(self) -> None:
        """Look every second until the daemon stops."""
        while True:
            await asyncio.sleep(LOOK_INTERVAL)
            try:
                await self.look()
            # Whatever a disk does, the next look may be better.
            except Exception:
                log.exception("keys.watch_broke")

    async def look(self) -> None:
        """Look at the file, and take over what changed in it. What is wrong is logged, once."""
        known = self._stamp
        try:
            found = await self._disk.run(lambda: _look(self._path, known))
        except DiskStuck as error:
            self._complain([str(error)])
            return
        if found is None:
            return
        self._stamp = found.stamp
        if found.error is not None:
            self._complain([str(problem) for problem in found.error.problems])
            return
        self._complaint = ""
        self._take(found.keys)

    def _take(self, keys: tuple[ApiKey, ...]) -> None:
        before, after = {key.name: key for key in self._keys}, {key.name: key for key in keys}
        if before == after:
            return
        self._keys = keys
        self._had_keys = self._had_keys or bool(keys)
        log.info(
            "keys.changed",
            added=sorted(after.keys() - before.keys()),
            removed=sorted(before.keys() - after.keys()),
            changed=sorted(name for name in before.keys() & after.keys() if before[name] != after[name]),
        )
        if not keys:
            log.error("keys.none_left", file=str(self._path))

    def _complain(self, problems: list[str]) -> None:
        complaint = "\n".join(problems)
        if complaint != self._complaint:
            log.error("keys.unread", problems=problems[:MAX_PROBLEMS])
        self._complaint = complaint


def _look(path: Path, known: Stamp) -> _Found | None:
    """What is in the file, None when it is as it was."""
    stamp = _stamp(path)
    if stamp == known:
        return None
    try:
        return _Found(stamp, read_keys(path))
    except ConfigError as error:
        return _Found(stamp, error=error)


def _stamp(path: Path) -> Stamp:
    try:
        status = path.stat()
    except OSError as error:  # no file at all is told from one that cannot be looked at
        return (error.errno or 0,)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_mode
