"""Rows of one model that are padded to one length: a BatchGenerator and what is known of its rows."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import mlx.core as mx
from mlx_lm.generate import BatchGenerator

from mlxd.engines.cache_sizes import slots_of, used_of
from mlxd.engines.prompt_batch import PromptBatch
from mlxd.engines.prompt_images import PromptImages
from mlxd.engines.prompt_price import BatchNeed, RowNeed
from mlxd.engines.row_faults import RowFault

# Rows of a BatchGenerator: how many run is Admission's choice, and may change while they do.
UNBOUNDED = sys.maxsize


class _Generator(BatchGenerator):  # type: ignore[misc]
    """BatchGenerator that leaves the wired limit as it sets it, and whose prefill chunks may change between steps.

    The limit is process-wide, and each generator sets the same: restoring an old value when one engine closes would
    take it from the others.
    """

    def __init__(self, model: Any, **options: Any) -> None:
        super().__init__(model, **options)
        self._prompt_batch = PromptBatch.empty(self.model, self.sampler)

    def close(self) -> None:
        self._old_wired_limit = None

    @property
    def is_decoding(self) -> bool:
        return len(self._generation_batch) > 0

    def pace(self, chunk: int) -> None:
        """Take at most `chunk` tokens of each prompt in the next step."""
        self.prefill_step_size = chunk

    @property
    def decoding_caches(self) -> list[Any]:
        return list(self._generation_batch.prompt_cache)

    @property
    def prompt_caches(self) -> list[Any]:
        return list(self._prompt_batch.prompt_cache)

    def evaluate(self) -> None:
        """Run what joined and removed rows left undone now, one layer at a time: all at once, old and new buffers of
        the whole batch would be there together.
        """
        for cache in (*self.prompt_caches, *self.decoding_caches):
            mx.eval(cache.state)


@dataclass(slots=True)
class Row:
    """One row; `length` counts its tokens, `cached` those that the prefix cache gave, `done` those of its prompt that
    are processed, `left` those that it may still generate. A chunk of its prompt has at most `chunk` tokens.
    """

    uid: int
    prompt: tuple[int, ...]
    cached: int
    length: int
    left: int
    chunk: int
    logprobs: int | None = None
    prefilling: bool = True
    done: int = 0
    fault: RowFault = field(default_factory=RowFault)
    images: PromptImages | None = None


@dataclass(frozen=True, slots=True)
class GroupStep:
    """A step of one group: BatchGenerator's responses by row, the rows that are at a cut, and what it took.

    `joined` when rows whose prompts were complete joined those that decode.
    """

    tokens: list[tuple[Row, Any]]
    reached: list[Row]
    joined: bool = False
    prompt_tokens: int = 0
    prompt_seconds: float = 0.0
    decode_seconds: float = 0.0


class RowGroup:
    """A padded batch. Uids are the runner's; the generator's own stay inside."""

    def __init__(self, model: Any, end_tokens: Sequence[int], chunk: int, stream: Any) -> None:
        self._generator = _Generator(
            model,
            stop_tokens=[[token] for token in end_tokens],
            completion_batch_size=UNBOUNDED,
            prefill_batch_size=UNBOUNDED,
            prefill_step_size=chunk,
            stream=stream,
        )
        self._rows: dict[int, Row] = {}
        self._inner: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def rows(self) -> Iterable[Row]:
        return self._rows.values()

    @property
    def lengths(self) -> list[int]:
        return [row.length for row in self._rows.values()]

    @property
    def prefilling(self) -> int:
        return sum(row.prefilling for row in self._rows.values())

    @property
    def depth(self) -> int:
        """Tokens processed of the prompt that is furthest."""
        return max((row.done for row in self._rows.values() if row.prefilling), default=0)

    @property
    def has_begun(self) -> bool:
        """Whether a step has processed a part of a prompt that is not complete."""
        return any(row.prefilling and row.done > row.cached for row in self._rows.values())

    @property
    def chunk(self) -> int:
        """Tokens of each prompt that a step may take at most."""
        return min((row.chunk for row in self._rows.values() if row.prefilling), default=UNBOUNDED)

    @property
    def is_decoding(self) -> bool:
        return self._generator.is_decoding

    def need(self, *more: RowNeed) -> BatchNeed:
        """What the rows, and those that may join them, are to a price."""
        slots, used = slots_of(self._generator.decoding_caches), used_of(self._generator.decoding_caches)
        begun = slots_of(self._generator.prompt_caches)
        decoding = [RowNeed(used, row.left, used, slots) for row in self._rows.values() if not row.prefilling]
        prompts = [
            RowNeed(len(row.prompt), row.left, row.done, max(begun, row.done))
            for row in self._rows.values()
            if row.prefilling
        ]
        return BatchNeed((*decoding, *prompts, *more), slots, len(decoding))

    @property
    def is_full(self) -> bool:
        """Whether the next step needs a longer buffer."""
        caches = self._generator.decoding_caches
        return self.is_decoding and 0 < slots_of(caches) <= used_of(caches)

    @property
    def nbytes(self) -> int:
        """Bytes of the batches' caches; layers from the prefix cache are its own until a batch has copied them."""
        return sum(layer.nbytes for layer in (*self._generator.prompt_caches, *self._generator.decoding_caches))

    def insert(self, row: Row, layers: list[Any] | None, cuts: Sequence[int] = (), **options: Any) -> None:
        """Add a row that has `layers` for its first `cached` tokens; `options` are lists of one for `insert`.

        Its prompt is processed up to each length of `cuts`, and up to its last token, without going over.
        """
        ends = [row.cached, *cuts, len(row.prompt)]
        segments = [list(row.prompt[start:end]) for start, end in pairwise(ends)]
        (inner,) = self._generator.insert_segments(
            [segments],
            max_tokens=[row.left],
            caches=[layers],
            all_tokens=[list(row.prompt[: row.cached])],
            **options,
        )
        self._rows[inner] = row
        self._inner[row.uid] = inner

    def holds(self, uid: int) -> bool:
        return uid in self._inner

    def row(self, uid: int) -> Row:
        """A row that it holds."""
        return self._rows[self._inner[uid]]

    def extract(self, uid: int) -> tuple[list[Any], list[int]]:
        """The row's cache and the tokens in it; not evaluated yet."""
        layers, tokens = self._generator.extract_cache([self._inner[uid]])[self._inner[uid]]
        return layers, tokens

    def remove(self, uids: Iterable[int]) -> None:
        """Drop rows; their memory is free after `settle`."""
        inner = [self._inner.pop(uid) for uid in uids if uid in self._inner]
        for number in inner:
            del self._rows[number]
        self._generator.remove(inner)

    def settle(self) -> None:
        """Give the memory of removed rows back now."""
        self._generator.evaluate()

    def step(self, chunk: int | None) -> GroupStep:
        """Decode one token for each row whose prompt is complete, then prefill `chunk` tokens of the others'."""
        if chunk is None:
            return GroupStep(self._book(self._generator.next()[1]), [])
        self._generator.pace(chunk)
        with self._generator.stats() as stats:
            prompts, tokens = self._generator.next()
        reached = []
        for response in prompts:
            row = self._rows[response.uid]
            row.done = row.cached + response.progress[0]
            if response.end_of_prompt:
                row.prefilling = False
            elif response.end_of_segment:
                reached.append(row)
        joined = any(response.end_of_prompt for response in prompts)
        if joined:
            self._generator.evaluate()
        booked = self._book(tokens)
        return GroupStep(booked, reached, joined, stats.prompt_tokens, stats.prompt_time, stats.decode_time)

    def _book(self, responses: list[Any]) -> list[tuple[Row, Any]]:
        booked = []
        for response in responses:
            row = self._rows[response.uid]
            row.length += 1
            row.left -= 1
            if response.finish_reason is not None:
                del self._rows[response.uid], self._inner[row.uid]
            booked.append((row, response))
        return booked
