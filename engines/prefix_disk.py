"""The prefixes of one model on the disk, so that they survive an unload and a restart."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.models import cache as mlx_caches
from mlx_lm.models.cache import load_prompt_cache, save_prompt_cache

from mlxd.engines.prefix_cache import LEAST_TOKENS, PrefixEntry
from mlxd.engines.prefix_files import (
    DATA,
    NAME,
    SIDECAR,
    Abandoned,
    BadEntry,
    StoredPrefix,
    check_data,
    encode_sidecar,
    prefix_key,
    remove_files,
    whole_file,
)
from mlxd.engines.prefix_folder import PrefixFolder
from mlxd.engines.token_arrays import Prompt, Tokens, common_length, token_array, usable_length

# Entries that wait to be written hold memory: so many at most, and one alone above so many bytes.
MOST_QUEUED = 2
MOST_QUEUED_BYTES = 512 * 2**20
# What an entry's files have beside the arrays, at most: for each layer, for each token, and once.
_LAYER_BYTES, _TOKEN_BYTES, _HEADER_BYTES = 4096, 11, 4096
# Most entries differ early, and to see that costs little: so many tokens are compared before the rest.
_NEAR = 256
Done = Callable[[PrefixEntry | None], None]


@dataclass(frozen=True, slots=True)
class DiskStats:
    """`entries` and their files' `nbytes` are the model's on the disk; `queued_bytes` of memory wait to be written."""

    entries: int = 0
    nbytes: int = 0
    queued_bytes: int = 0
    writes: int = 0
    reads: int = 0
    failures: int = 0


class PrefixDisk:
    """One load's store. Its methods may be called from any thread, return at once but for `close`, and never raise.

    Files are read and written on the folder's thread. `max_bytes` is this model's share of the folder.
    """

    def __init__(self, folder: PrefixFolder, identity: str, max_bytes: int) -> None:
        """`identity` is what `model_identity` gives. Raises ValueError for anything else."""
        if not NAME.fullmatch(identity):
            raise ValueError(f"{identity!r} is not 32 hexadecimal digits")
        self._folder = folder
        self._identity = identity
        self._max_bytes = max_bytes
        self._changed = threading.Condition()
        self._queue: deque[PrefixEntry] = deque()
        self._writing: PrefixEntry | None = None
        self._scheduled = False
        self._joined = False
        self._closed = False
        self._abandoned = False
        self._writes = self._reads = self._failures = 0

    def open(self) -> None:
        """Begin to read what is stored; until that is done nothing is found."""
        with self._changed:
            if self._joined or self._closed:
                return
            self._joined = True
        self._folder.join(self._identity)

    def find(self, prompt: Prompt) -> tuple[str, int] | None:
        """The entry that gives the most tokens of a prompt but its last, and how many; the smallest of equals."""
        wanted = token_array(prompt)
        head = wanted[:LEAST_TOKENS].tobytes()
        best, most = None, LEAST_TOKENS - 1
        for stored in () if self._closed else self._folder.entries(self._identity):
            length = _usable(stored, wanted, head)
            if length > most or (best is not None and length == most and stored.nbytes < best.nbytes):
                best, most = stored, length
        return (best.key, most) if best is not None else None

    def nbytes(self, key: str) -> int:
        """Bytes of memory that `fetch` would take; 0 when the entry is gone."""
        stored = self._stored(key)
        return stored.nbytes if stored is not None else 0

    def fetch(self, key: str, done: Done) -> None:
        """Read an entry; `done` gets it, evaluated, or None, once, on the folder's thread (after `close`, on this)."""
        if self._closed or not self._folder.submit(partial(self._answer, key, done), urgent=True):
            done(None)

    def store(self, entry: PrefixEntry) -> None:
        """Queue an entry, whose arrays are evaluated, to be written, unless it is known or too big.

        The oldest of the queue is given up when there are too many.
        """
        with self._changed:
            if self._closed or not self._joined or not self._enqueue(entry):
                return
            while len(self._queue) > MOST_QUEUED or (len(self._queue) > 1 and self._queued() > MOST_QUEUED_BYTES):
                self._queue.popleft()
            self._schedule()

    def stats(self) -> DiskStats:
        entries = self._folder.entries(self._identity)
        with self._changed:
            return DiskStats(
                entries=len(entries),
                nbytes=sum(stored.size for stored in entries),
                queued_bytes=self._queued() + (self._writing.nbytes if self._writing is not None else 0),
                writes=self._writes,
                reads=self._reads,
                failures=self._failures,
            )

    def close(self, timeout: float, last: Sequence[PrefixEntry] = ()) -> bool:
        """Write what is queued and then `last`, in that order and for `timeout` seconds; False when some was left.

        Blocks. After it the other methods do nothing.
        """
        with self._changed:
            if self._closed:
                return True
            for entry in last if self._joined else ():
                self._enqueue(entry)
            self._schedule()
            self._closed = True
            written = self._changed.wait_for(lambda: not self._queue and self._writing is None, max(0.0, timeout))
            self._abandoned = True
            self._queue.clear()
        if self._joined:
            self._folder.leave(self._identity)
        return written

    def _enqueue(self, entry: PrefixEntry) -> bool:
        if entry.nbytes > self._max_bytes or len(entry.tokens) < LEAST_TOKENS:
            return False
        trimmable = entry.trimmable
        for stored in self._folder.entries(self._identity):
            if _covers(stored.tokens, entry.tokens, trimmable=stored.trimmable):
                self._folder.submit(partial(self._folder.touch, self._identity, stored.key))
                return False
        waiting = [*self._queue, *([self._writing] if self._writing is not None else [])]
        if any(_covers(one.tokens, entry.tokens, trimmable=one.trimmable) for one in waiting):
            return False
        self._queue = deque(one for one in self._queue if not _covers(entry.tokens, one.tokens, trimmable=trimmable))
        self._queue.append(entry)
        return True

    def _queued(self) -> int:
        return sum(entry.nbytes for entry in self._queue)

    def _schedule(self) -> None:
        if self._scheduled or not self._queue:
            return
        self._scheduled = self._folder.submit(self._write_next)
        if not self._scheduled:
            self._queue.clear()

    def _write_next(self) -> None:
        with self._changed:
            self._writing = self._queue.popleft() if self._queue else None
        try:
            self._write()
        except Abandoned:
            pass
        except OSError as error:
            self._fail()
            self._folder.pause_writes(error)
        except Exception as error:  # noqa: BLE001 - whatever a cache of a new kind does, the thread lives on
            self._fail()
            self._folder.report("arrays", error)
        with self._changed:
            self._writing = None
            self._scheduled = False
            self._schedule()
            self._changed.notify_all()

    def _write(self) -> None:
        entry = self._writing
        if entry is None or not self._folder.is_open(self._identity) or not self._folder.writable:
            return
        known = self._folder.entries(self._identity)
        if any(_covers(stored.tokens, entry.tokens, trimmable=stored.trimmable) for stored in known):
            return
        _check_kinds(entry.layers)
        covered = [s.key for s in known if _covers(entry.tokens, s.tokens, trimmable=entry.trimmable)]
        most = entry.nbytes + _HEADER_BYTES + _LAYER_BYTES * len(entry.layers) + _TOKEN_BYTES * len(entry.tokens)
        if not self._folder.make_room(self._identity, most, self._max_bytes, covered):
            return
        stored, size = self._write_files(entry, self._folder.model_folder(self._identity))
        self._folder.add(self._identity, stored, size)
        with self._changed:
            self._writes += 1
        for old in covered:
            self._folder.remove(self._identity, old)

    def _write_files(self, entry: PrefixEntry, folder: Path) -> tuple[StoredPrefix, int]:
        key = prefix_key(entry.tokens)
        try:
            with whole_file(folder / f"{key}{DATA}", self._is_abandoned) as data:
                save_prompt_cache(data, entry.layers)
            stored = StoredPrefix(key, entry.tokens, entry.nbytes, data.size, entry.trimmable, data.checksum)
            with whole_file(folder / f"{key}{SIDECAR}") as sidecar:
                sidecar.write(encode_sidecar(stored))
        except BaseException:
            with contextlib.suppress(OSError):  # the next start removes them
                remove_files(folder, key)
            raise
        return stored, data.size + sidecar.size

    def _answer(self, key: str, done: Done) -> None:
        entry = None
        stored = None if self._closed else self._stored(key)
        if stored is not None:
            # closed meanwhile: nobody waits for it
            with contextlib.suppress(Abandoned):
                entry = self._load(stored)
        try:
            done(entry)
        except Exception as error:  # noqa: BLE001 - the thread is not the caller's to end
            self._fail()
            self._folder.report("done", error)

    def _load(self, stored: StoredPrefix) -> PrefixEntry | None:
        try:
            path = self._folder.model_folder(self._identity) / f"{stored.key}{DATA}"
            check_data(path, stored, self._is_abandoned)
            entry = _parse(path, stored.tokens)
        except (OSError, MemoryError) as error:
            self._fail()
            self._folder.report("read", error)
            return None
        except Abandoned:
            raise
        except Exception as error:  # noqa: BLE001 - damaged or of another version: either way it is of no use
            self._fail()
            self._folder.report("damaged" if isinstance(error, BadEntry) else "unreadable", error)
            self._folder.forget(self._identity, stored.key)
            self._folder.remove(self._identity, stored.key)
            return None
        self._folder.touch(self._identity, stored.key)
        with self._changed:
            self._reads += 1
        return entry

    def _stored(self, key: str) -> StoredPrefix | None:
        return next((stored for stored in self._folder.entries(self._identity) if stored.key == key), None)

    def _is_abandoned(self) -> bool:
        return self._abandoned

    def _fail(self) -> None:
        with self._changed:
            self._failures += 1


def _usable(stored: StoredPrefix, wanted: Tokens, head: bytes) -> int:
    if stored.tokens[:LEAST_TOKENS].tobytes() != head:
        return 0
    near = common_length(stored.tokens[:_NEAR], wanted[:_NEAR])
    # tokens behind the first that differs tell nothing
    return usable_length(stored.tokens, wanted if near == _NEAR else wanted[: near + 2], trimmable=stored.trimmable)


def _covers(held: Tokens, tokens: Tokens, *, trimmable: bool) -> bool:
    """Whether the cache after `held`, which can or cannot be cut back, makes that after `tokens` superfluous."""
    if len(held) < len(tokens) or not (trimmable or len(held) == len(tokens)):
        return False
    near = tokens[:_NEAR]
    return common_length(held[:_NEAR], near) == len(near) and common_length(held, tokens) == len(tokens)


def _check_kinds(layers: list[Any]) -> None:
    """Raises TypeError for a cache that mlx-lm could write but not read."""
    for layer in layers:
        name = type(layer).__name__
        if getattr(mlx_caches, name, None) is not type(layer):
            raise TypeError(f"a cache of the kind {name} cannot be read back")


def _parse(path: Path, tokens: Tokens) -> PrefixEntry:
    layers = load_prompt_cache(str(path))
    mx.eval([layer.state for layer in layers])
    return PrefixEntry(tokens, layers, sum(layer.nbytes for layer in layers))
