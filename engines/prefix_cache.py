"""Key-value caches of prompts that were processed before, for prompts that begin the same way.

mlx-lm's `LRUPromptCache` does this with a tree of dictionaries, one for each token, whose search copies lists as
long as what it passes, and it forgets by age since the insertion. Here an entry is one array of token ids; prompts
are compared with all that have their first tokens (30 µs for 20,000 tokens each), and the least recently used entry
goes first.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from mlx_lm.models.cache import can_trim_prompt_cache, trim_prompt_cache

from mlxd.engines.token_arrays import Prompt, Tokens, common_length, token_array, usable_length

# Shorter prefixes cost more to keep than to process again.
LEAST_TOKENS = 16
# Entries that prompts are compared with.
MOST_ENTRIES = 1024


@dataclass(frozen=True, eq=False)
class PrefixEntry:
    """The cache after `tokens`, one object a layer, evaluated. It is never written to. Sizes in bytes."""

    tokens: Tokens
    layers: list[Any]
    nbytes: int

    @cached_property
    def head(self) -> bytes:
        """The first tokens, without which a prompt has nothing in common with it."""
        return self.tokens[:LEAST_TOKENS].tobytes()

    @property
    def trimmable(self) -> bool:
        """True when the cache of any shorter prefix can be had from it; not for recurrent or full sliding layers."""
        return bool(can_trim_prompt_cache(self.layers))


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """The cache of the first `length` tokens of a prompt, to be used once; it is that of the entry `key`, cut back by
    `cut` tokens.
    """

    length: int
    layers: list[Any]
    key: int
    cut: int


def cut_back(layers: list[Any], tokens: int) -> list[Any]:
    """A sequence's cache without its last tokens; `layers` stay as they are.

    The arrays are shared: whoever changes its copy of the objects makes new arrays.
    """
    own = copy.deepcopy(layers)
    trim_prompt_cache(own, tokens)
    return own


class PrefixCache:
    """Bounded in bytes, least recently used out first. Used on the engine's lane only.

    `on_evict` gets the entries that newer ones push out.
    """

    def __init__(self, max_bytes: int, on_evict: Callable[[PrefixEntry], None] = lambda _: None) -> None:
        self.max_bytes = max_bytes
        self._on_evict = on_evict
        self._entries: OrderedDict[int, PrefixEntry] = OrderedDict()
        self._by_head: dict[bytes, OrderedDict[int, PrefixEntry]] = {}
        self._next_key = 0
        self._nbytes = 0
        self.changes = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def nbytes(self) -> int:
        return self._nbytes

    @property
    def entries(self) -> tuple[PrefixEntry, ...]:
        """What is held, the least recently used first."""
        return tuple(self._entries.values())

    def match_length(self, prompt: Prompt) -> int:
        """How many tokens `match` would give."""
        return self._find(token_array(prompt))[1]

    def match(self, prompt: Prompt) -> PrefixHit | None:
        """The longest prefix held, without the prompt's last token, which has to be processed for its logits."""
        key, length = self._find(token_array(prompt))
        if key is None:
            return None
        entry = self._use(key)
        cut = len(entry.tokens) - length
        return PrefixHit(length, cut_back(entry.layers, cut), key, cut)

    def put(self, tokens: Prompt, nbytes: int, take: Callable[[], list[Any] | None]) -> bool:
        """Keep the cache of `tokens`; False when it is too big, too short or known, or when there is none after all.

        `take` gives it, evaluated, or None. It is called only for what is wanted: a copy may be dear.
        """
        if len(tokens) < LEAST_TOKENS or nbytes > self.max_bytes:
            return False
        held = token_array(tokens)
        if self._is_covered(held) or (layers := take()) is None:
            return False
        entry = PrefixEntry(held, layers, sum(layer.nbytes for layer in layers))
        self._drop_covered_by(entry)
        self._add(entry)
        while self._nbytes > self.max_bytes or len(self._entries) > MOST_ENTRIES:
            self._on_evict(self._pop_oldest())
        return True

    def trim(self, max_bytes: int, sparing: Prompt = ()) -> int:
        """Drop the least recently used until at most so many bytes are held; the bytes that went. The entry that serves
        the prompt `sparing` stays.

        Nobody is told: an entry that somebody else still held would free nothing.
        """
        before = self._nbytes
        spared = self._find(token_array(sparing))[0] if len(sparing) else None
        for key in [key for key in self._entries if key != spared]:
            if self._nbytes <= max_bytes:
                break
            self._drop(key)
        return before - self._nbytes

    def _add(self, entry: PrefixEntry) -> None:
        key, self._next_key = self._next_key, self._next_key + 1
        self._entries[key] = entry
        self._by_head.setdefault(entry.head, OrderedDict())[key] = entry
        self._nbytes += entry.nbytes
        self.changes += 1

    def _use(self, key: int) -> PrefixEntry:
        """The entry, as the one that was used last."""
        entry = self._entries[key]
        self._entries.move_to_end(key)
        self._by_head[entry.head].move_to_end(key)
        return entry

    def _pop_oldest(self) -> PrefixEntry:
        return self._drop(next(iter(self._entries)))

    def _drop(self, key: int) -> PrefixEntry:
        entry = self._entries.pop(key)
        alike = self._by_head[entry.head]
        del alike[key]
        if not alike:
            del self._by_head[entry.head]
        self._nbytes -= entry.nbytes
        self.changes += 1
        return entry

    def clear(self) -> None:
        """Drop all, without telling anybody."""
        self._entries.clear()
        self._by_head.clear()
        self._nbytes = 0

    def _find(self, prompt: Tokens) -> tuple[int | None, int]:
        best: tuple[int | None, int] = (None, 0)
        for key, entry in self._alike(prompt):
            length = usable_length(entry.tokens, prompt, trimmable=entry.trimmable)
            if length > max(best[1], LEAST_TOKENS - 1):
                best = (key, length)
        return best

    def _alike(self, tokens: Tokens) -> list[tuple[int, PrefixEntry]]:
        """The entries that begin like `tokens`, the last used first."""
        alike = self._by_head.get(tokens[:LEAST_TOKENS].tobytes())
        return list(reversed(alike.items())) if alike is not None else []

    def _is_covered(self, tokens: Tokens) -> bool:
        for key, entry in self._alike(tokens):
            if common_length(entry.tokens, tokens) < len(tokens):
                continue
            if len(entry.tokens) == len(tokens) or entry.trimmable:
                self._use(key)
                return True
        return False

    def _drop_covered_by(self, new: PrefixEntry) -> None:
        if not new.trimmable:
            return
        for key, entry in self._alike(new.tokens):
            if common_length(entry.tokens, new.tokens) == len(entry.tokens):
                self._drop(key)
