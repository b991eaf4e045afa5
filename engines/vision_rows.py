"""What a vision model needs of each row beside its tokens. It rides along a batch's caches as one more layer, so that
mlx-lm's generator joins, parts and drops it together with the row's keys and values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

Places = npt.NDArray[np.int64]
NO_PLACES: Places = np.zeros(0, np.int64)


@dataclass(eq=False)
class ImageFeatures:
    """One image as the language model reads it: embeddings of its tokens, shape [tokens, hidden], and what is added to
    the first layers' states at the same places. Evaluated. They can be referred to weakly.
    """

    rows: mx.array
    deep: Sequence[mx.array] = ()

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes + sum(layer.nbytes for layer in self.deep)


@dataclass(frozen=True, eq=False)
class RowContext:
    """One row's images. `features` are those of the image tokens that stand at `places` of the prompt, ascending.
    `positions` of the prompt's tokens are shaped [3, length], None where they just count; behind the prompt they count
    on, `shift` from the token's place.
    """

    places: Places = field(default_factory=lambda: NO_PLACES)
    features: Sequence[ImageFeatures] = ()
    positions: npt.NDArray[np.int32] | None = None
    shift: int = 0

    def positions_of(self, start: int, stop: int) -> npt.NDArray[np.int32]:
        """Positions of the tokens from `start` up to `stop`, shape [3, stop - start]."""
        counted = np.broadcast_to(np.arange(start, stop, dtype=np.int32), (3, stop - start))
        if self.positions is None:
            return counted
        given = self.positions[:, start:stop]
        return np.concatenate([given, counted[:, given.shape[1] :] + np.int32(self.shift)], axis=1)

    def features_in(self, start: int, stop: int) -> ImageFeatures | None:
        """The features of the image tokens among these tokens; None when there are none."""
        first, last = np.searchsorted(self.places, (start, stop))
        if first == last:
            return None
        parts, place = [], 0
        for one in self.features:
            inside = slice(max(0, first - place), max(0, last - place))
            if inside.start < min(inside.stop, len(one.rows)):
                parts.append(ImageFeatures(one.rows[inside], [layer[inside] for layer in one.deep]))
            place += len(one.rows)
        return joined(parts)

    def columns_in(self, start: int, stop: int) -> Places:
        """Where image tokens stand among these tokens, counted from the first of them."""
        first, last = np.searchsorted(self.places, (start, stop))
        return self.places[first:last] - start

    def behind(self, done: int) -> RowContext:
        """The same once `done` tokens are processed: without features that nothing needs any more."""
        if not len(self.places) or done <= self.places[-1]:
            return self
        return RowContext(positions=self.positions, shift=self.shift)


TEXT = RowContext()


def joined(parts: Sequence[ImageFeatures]) -> ImageFeatures:
    """Features of places that follow each other; at least one part."""
    if len(parts) == 1:
        return parts[0]
    deep = [mx.concatenate(list(layers)) for layers in zip(*(part.deep for part in parts), strict=True)]
    return ImageFeatures(mx.concatenate([part.rows for part in parts]), deep)


@dataclass(frozen=True, slots=True)
class Window:
    """The part of one row that a step processes: tokens from `start` up to `stop` stand first in the row, padding
    follows.
    """

    row: RowContext
    start: int
    stop: int

    @property
    def features(self) -> ImageFeatures | None:
        """The features of its image tokens; None when there are none."""
        return self.row.features_in(self.start, self.stop)


class RowContexts:
    """The contexts of a batch's rows, with how many tokens of each are processed. It has the face of a cache."""

    nbytes = 0

    def __init__(self, rows: Iterable[RowContext] = (TEXT,), done: Iterable[int] = (0,)) -> None:
        self.rows = list(rows)
        self.done = list(done)
        self._left: list[int] | None = None

    @property
    def state(self) -> list[Any]:
        """Nothing to evaluate: features are, before a row is there."""
        return []

    def advance(self, columns: int) -> list[Window]:
        """Count the next `columns` of every row as processed; what of each is no padding."""
        left = self._left or [columns] * len(self.rows)
        taken = [min(columns, count) for count in left]
        rows, starts = self.rows, self.done
        self.done = [done + count for done, count in zip(starts, taken, strict=True)]
        self.rows = [row.behind(done) for row, done in zip(rows, self.done, strict=True)]
        if self._left is not None:
            self._left = [count - some for count, some in zip(left, taken, strict=True)]
        return [Window(*window) for window in zip(rows, starts, self.done, strict=True)]

    def prepare(self, *, lengths: Sequence[int] | None = None, **_: Any) -> None:
        """The next columns are padded: row by row only so many are tokens."""
        self._left = None if lengths is None else list(lengths)

    def finalize(self) -> None:
        """The padded columns are over."""
        self._left = None

    @staticmethod
    def merge(parts: Sequence[RowContexts]) -> RowContexts:
        """One batch of several."""
        return RowContexts(chain.from_iterable(part.rows for part in parts), chain.from_iterable(p.done for p in parts))

    def extend(self, other: RowContexts) -> None:
        """Add another batch's rows behind these."""
        self.rows += other.rows
        self.done += other.done

    def filter(self, keep: Iterable[int]) -> None:
        """Keep these rows."""
        kept = [int(index) for index in keep]
        self.rows = [self.rows[index] for index in kept]
        self.done = [self.done[index] for index in kept]

    def extract(self, index: int) -> RowContexts:
        """One row of them."""
        return RowContexts([self.rows[index]], [self.done[index]])

    def is_trimmable(self) -> bool:
        return True

    def trim(self, count: int) -> int:
        """Take back the last tokens of every row."""
        self.done = [max(0, done - count) for done in self.done]
        return count

    def size(self) -> int:
        return max(self.done, default=0)

    def empty(self) -> bool:
        return not any(self.done)

    def __deepcopy__(self, _: dict[int, Any]) -> RowContexts:
        """Contexts never change, and are shared."""
        copied = RowContexts(self.rows, self.done)
        copied._left = None if self._left is None else list(self._left)
        return copied
