"""What a runner keeps of processed prompts: in memory within bounds and headroom, and on the disk if there is room."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog

from mlxd.engines.cache_layers import CacheShape, detach
from mlxd.engines.prefix_cache import LEAST_TOKENS, PrefixCache, PrefixEntry, PrefixHit
from mlxd.engines.prefix_disk import Done, PrefixDisk
from mlxd.engines.token_arrays import Prompt, token_array, usable_length

# Seconds that a disk may take to read a prefix; then its prompt is processed.
READ_PATIENCE = 10.0

log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PrefixLimits:
    """`max_bytes` of memory, 0 for none; a token of one sequence takes `token_bytes`, 0 when unknown."""

    max_bytes: int
    token_bytes: int


class KeptPrefixes:
    """The prefixes of one engine, in a PrefixCache of its own or in `cache`. Used on its lane only."""

    def __init__(
        self,
        limits: PrefixLimits,
        shape: CacheShape,
        disk: PrefixDisk | None = None,
        cache: PrefixCache | None = None,
    ) -> None:
        self._limits = limits
        self._shape = shape
        self._disk = disk
        on_evict = disk.store if disk is not None else lambda _: None
        self._cache = cache if cache is not None else PrefixCache(limits.max_bytes, on_evict)
        self._headroom: Callable[[], int | None] = lambda: None
        self._lock = threading.Lock()
        self._reading: dict[str, list[Done]] = {}

    @property
    def nbytes(self) -> int:
        """Bytes that `trim` can free."""
        return self._cache.nbytes

    @property
    def changes(self) -> int:
        """Changes whenever `cached_tokens` may have another answer."""
        return self._cache.changes

    @property
    def active(self) -> bool:
        """Whether anything is ever kept."""
        return self._limits.max_bytes > 0

    def use_headroom(self, headroom: Callable[[], int | None]) -> None:
        """Keep no more than `headroom` has, in bytes; None for no limit."""
        self._headroom = headroom

    def cached_tokens(self, prompt: Prompt) -> int:
        """How many tokens of a prompt need not be processed again."""
        return self._cache.match_length(prompt)

    def shared_tokens(self, prompt: Prompt, other: Prompt) -> int:
        """How many tokens of `prompt` the cache of `other` will give once it is processed; 0 if it is not kept."""
        if not self.active or len(other) * self._limits.token_bytes > self._limits.max_bytes:
            return 0
        trimmable = self._shape.is_trimmable(len(other) - 1)
        return usable_length(token_array(other[:-1]), token_array(prompt), trimmable=trimmable)

    def match(self, prompt: Prompt) -> PrefixHit | None:
        """The longest prefix that is in memory."""
        return self._cache.match(prompt)

    def checkpoints(self, start: int, prompt: Sequence[int]) -> list[int]:
        """Lengths after `start` at which a prompt's cache is to be kept, beside its end; in order."""
        return self._shape.checkpoints(start, len(prompt) - 1) if self.active else []

    def keep(self, layers: list[Any], tokens: Prompt) -> None:
        """Keep a sequence's cache, unless memory is short; `layers` may still belong to a batch.

        A copy that cannot be made is not kept, and nothing else: its sequence may have ended well.
        """
        if not self.active:
            return
        nbytes = sum(layer.nbytes for layer in layers)
        try:
            self._cache.put(tokens, nbytes, lambda: self._copied(layers, nbytes))
        # MLX raises RuntimeError or ValueError for want of memory, by backend
        except Exception as error:  # noqa: BLE001
            log.warning("prefix_cache.keep_failed", tokens=len(tokens), bytes=nbytes, error=repr(error))

    def _copied(self, layers: list[Any], nbytes: int) -> list[Any] | None:
        """A copy that is free of the batch; None when memory is short."""
        spare = self._headroom()
        return None if spare is not None and nbytes > spare else detach(layers)

    def trim(self, max_bytes: int, sparing: Prompt = ()) -> int:
        """Keep at most so many bytes; the bytes that are free now. What the prompt `sparing` begins with is kept.

        Nothing is written: that would hold them longer.
        """
        return self._cache.trim(max_bytes, sparing)

    def restore(self, prompt: Prompt, done: Done) -> bool:
        """Begin to read what is on the disk for a prompt, if that is more than what is in memory.

        `done` is then called once, on the disk's thread, with what `adopt` takes. Prompts that begin alike at the same
        time wait for one reading.
        """
        found = self._disk.find(prompt) if self._disk is not None else None
        if self._disk is None or found is None or found[1] < self.cached_tokens(prompt) + LEAST_TOKENS:
            return False
        nbytes, spare = self._disk.nbytes(found[0]), self._headroom()
        if nbytes > self._limits.max_bytes or (spare is not None and nbytes > spare):
            return False
        with self._lock:
            waiting = self._reading.setdefault(found[0], [])
            waiting.append(done)
            is_first = len(waiting) == 1
        if is_first:
            timer = threading.Timer(READ_PATIENCE, self._answer, (found[0], None))
            timer.daemon = True
            timer.start()
            self._disk.fetch(found[0], partial(self._answer, found[0], timer=timer))
        return True

    def _answer(self, key: str, entry: PrefixEntry | None, timer: threading.Timer | None = None) -> None:
        """The first answer counts, and a disk that has none in time has nothing."""
        if timer is not None:
            timer.cancel()
        with self._lock:
            waiting = self._reading.pop(key, ())
        for done in waiting:
            done(entry)

    def adopt(self, restored: PrefixEntry | None) -> None:
        """Keep what was read; None when it could not be."""
        if restored is not None:
            self._cache.put(restored.tokens, restored.nbytes, lambda: restored.layers)

    def close(self, spill_timeout: float) -> None:
        """Write what is kept to the disk, the newest first, for at most so many seconds, and drop it."""
        if self._disk is not None:
            self._disk.close(spill_timeout, last=tuple(reversed(self._cache.entries)))
        self._cache.clear()
