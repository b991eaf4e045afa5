"""The folder of all models' stored prefixes: its bound, and the one thread that works on its files. No MLX here.

One thread for all models: threads that use MLX cost memory that is not given back when they end. As every change of a
file is made on it, the stores of several models, or two of the same one, need no lock but for the index.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import structlog

from mlxd.engines.backend import Backend, BackendFactory
from mlxd.engines.lanes import Lane
from mlxd.engines.prefix_files import (
    NAME,
    SIDECAR,
    BadEntry,
    StoredFiles,
    StoredPrefix,
    read_sidecar,
    remove_files,
    stored_files,
    sync_folder,
)

# Seconds without writes after one failed, for a full disk.
WRITE_PAUSE = 60.0

log = structlog.stdlib.get_logger(__name__)
Work = Callable[[], None]


class PrefixFolder:
    """Built once for the daemon; its thread starts with the first store and ends with `close`.

    All files together stay within `max_bytes`, the least recently used go first. Methods whose names say nothing
    else are for the thread; `submit`, `resize`, `join`, `leave`, `entries`, `report` and `close` are for any.
    """

    def __init__(
        self, path: Path, max_bytes: int, backend: BackendFactory, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._backend = backend
        self._clock = clock
        self._lock = threading.Lock()
        self._lane: Lane | None = None
        self._closed = False
        self._urgent: deque[Work] = deque()
        self._later: deque[Work] = deque()
        self._index: dict[str, dict[str, StoredPrefix]] = {}
        self._users: dict[str, int] = {}
        self._reported: set[str] = set()
        # of the thread alone: bytes of every entry, the least recently used first; None before they were looked for
        self._sizes: OrderedDict[tuple[str, str], int] | None = None
        self._nbytes = 0
        self._write_again = 0.0

    def submit(self, work: Work, *, urgent: bool = False) -> bool:
        """Queue work, which must not raise, for the thread; what is urgent goes first. False after `close`."""
        with self._lock:
            if self._closed:
                return False
            if self._lane is None:
                self._lane = Lane("prefix-disk", self._backend)
            (self._urgent if urgent else self._later).append(work)
            self._lane.run(self._work)
        return True

    def close(self, timeout: float) -> bool:
        """Do what is queued and end the thread; False when it is still busy after `timeout` seconds."""
        with self._lock:
            self._closed = True
            lane = self._lane
        if lane is None:
            return True
        lane.stop()
        return lane.join(timeout)

    def resize(self, max_bytes: int) -> None:
        """Another bound, from the next write on."""
        self._max_bytes = max_bytes

    def join(self, identity: str) -> None:
        """Read what is stored of a model, on the thread; the twin of `leave`."""
        with self._lock:
            self._users[identity] = self._users.get(identity, 0) + 1
        self.submit(lambda: self._open(identity), urgent=True)

    def leave(self, identity: str) -> None:
        """Forget a model's entries in memory when the last of its stores goes."""
        with self._lock:
            self._users[identity] -= 1
            if not self._users[identity]:
                del self._users[identity]
                self._index.pop(identity, None)

    def entries(self, identity: str) -> tuple[StoredPrefix, ...]:
        """What is stored of a model; nothing before it was read."""
        with self._lock:
            return tuple(self._index.get(identity, {}).values())

    def report(self, kind: str, error: BaseException, **facts: float) -> None:
        """Log a failure, the first of its kind."""
        with self._lock:
            if kind in self._reported:
                return
            self._reported.add(kind)
        log.warning("prefix_disk.failed", kind=kind, error=f"{type(error).__name__}: {error}"[:500], **facts)

    def is_open(self, identity: str) -> bool:
        with self._lock:
            return identity in self._index

    @property
    def writable(self) -> bool:
        """False for a while after a write that the disk refused."""
        return self._clock() >= self._write_again

    def pause_writes(self, error: OSError) -> None:
        """Take the disk for full."""
        self._write_again = self._clock() + WRITE_PAUSE
        self.report("write", error, retry_s=WRITE_PAUSE)

    def model_folder(self, identity: str) -> Path:
        """The folder of a model's files, made if it is not there. Raises OSError, also for a link."""
        folder = self._path / identity
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not stat.S_ISDIR(folder.lstat().st_mode):
            raise NotADirectoryError(f"{folder} is a link")
        return folder

    def make_room(self, identity: str, need: int, share: int, first: Iterable[str] = ()) -> bool:
        """Remove entries until `need` bytes fit into the folder, and into the model's `share`; False if they cannot.

        Those named by `first` go before others, for they are to go anyway.
        """
        if need > min(share, self._max_bytes):
            return False
        known = self._known()

        def fits() -> bool:
            return self._nbytes + need <= self._max_bytes

        def fits_share() -> bool:
            return need + sum(size for (model, _), size in known.items() if model == identity) <= share

        self._remove_until(lambda: fits() and fits_share(), [(identity, key) for key in first])
        self._remove_until(fits_share, [one for one in known if one[0] == identity])
        self._remove_until(fits, list(known))
        return fits() and fits_share()

    def add(self, identity: str, stored: StoredPrefix, nbytes: int) -> None:
        """Take an entry into the books once its files are whole; its files have `nbytes` together."""
        sync_folder(self._path / identity)
        self._known()[identity, stored.key] = nbytes
        self._nbytes += nbytes
        with self._lock:
            self._reported.discard("write")
            if identity in self._index:
                self._index[identity][stored.key] = stored
        # the room that was made was for an estimate
        self.make_room(identity, 0, self._max_bytes)

    def remove(self, identity: str, key: str) -> bool:
        """Remove an entry; False when the disk refuses, and then its bytes still count."""
        try:
            remove_files(self._path / identity, key)
        except OSError as error:
            self.report("remove", error)
            return False
        self._nbytes -= self._known().pop((identity, key), 0)
        self.forget(identity, key)
        return True

    def forget(self, identity: str, key: str) -> None:
        """Let an entry not be found any more, whatever becomes of its files."""
        with self._lock:
            self._index.get(identity, {}).pop(key, None)

    def touch(self, identity: str, key: str) -> None:
        """Note that an entry was used, where a restart will find it."""
        now = time.time_ns()
        try:
            os.utime(self._path / identity / f"{key}{SIDECAR}", ns=(now, now), follow_symlinks=False)
        except FileNotFoundError:
            self.remove(identity, key)
        except OSError as error:
            self.report("touch", error)
        if (identity, key) in self._known():
            self._known().move_to_end((identity, key))

    def _work(self, open_backend: Callable[[], Backend]) -> None:
        with self._lock:
            work = self._urgent.popleft() if self._urgent else self._later.popleft()
        try:
            open_backend()
        except Exception as error:  # noqa: BLE001 - without a backend the work fails and says so itself
            self.report("backend", error)
        work()

    def _remove_until(self, enough: Callable[[], bool], victims: list[tuple[str, str]]) -> None:
        for identity, key in victims:
            # a disk that refuses one removal would refuse the others, or lose them for nothing
            if enough() or not self.remove(identity, key):
                return

    def _known(self) -> OrderedDict[tuple[str, str], int]:
        if self._sizes is None:
            raise RuntimeError("the folder was not opened")
        return self._sizes

    def _open(self, identity: str) -> None:
        try:
            if self._sizes is None:
                self._look()
            entries = dict(self._read(identity))
        except OSError as error:
            self.report("open", error)
            return
        with self._lock:
            if identity in self._users:
                self._index[identity] = entries

    def _read(self, identity: str) -> Iterator[tuple[str, StoredPrefix]]:
        for model, key in list(self._known()):
            if model != identity:
                continue
            try:
                yield key, read_sidecar(self._path / identity, key)
            except BadEntry as error:
                self.report("sidecar", error)
                self.remove(identity, key)
            except OSError as error:
                self.report("sidecar", error)

    def _look(self) -> None:
        """Find all models' entries, remove garbage and what is over the bound. Raises OSError."""
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = [(files, model) for model in self._models() for files in self._files(model)]
        # what cannot stay should not drive out others
        found.sort(key=lambda one: (one[0].nbytes <= self._max_bytes, one[0].used_ns))
        self._sizes = OrderedDict(((model, files.key), files.nbytes) for files, model in found)
        self._nbytes = sum(self._sizes.values())
        now = time.time_ns()
        for files, model in found:
            if files.used_ns > now:  # it would never grow old
                self.touch(model, files.key)
        self.make_room("", 0, self._max_bytes)

    def _models(self) -> Iterator[str]:
        for item in sorted(self._path.iterdir()):
            if not NAME.fullmatch(item.name):
                continue
            if stat.S_ISDIR(item.lstat().st_mode):
                yield item.name
            else:
                item.unlink()

    def _files(self, model: str) -> list[StoredFiles]:
        folder = self._path / model
        try:
            files = stored_files(folder)
        except OSError as error:
            self.report("open", error)
            return []
        if not files:
            with contextlib.suppress(OSError):  # something else is in it
                folder.rmdir()
        return files
