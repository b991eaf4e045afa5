"""What a prefill step takes beyond its cache, learned from steps that were measured.

The working memory of a step is close to rows * chunk * u, where u, in bytes for each token, grows with the depth of the
prompt and, in some models, with the chunk. A cell has the last measurements for chunks of about one size within one
step of a buffer's growth, of which the largest counts: an upper quantile, not a mean. Where there is none, others bound
it, with a slope for what is deeper and a factor for other sizes; the least bound counts, but never less than what steps
alike were seen to take.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from mlxd.engines.cache_cost import STEP

# Measurements of shorter chunks say nothing: what a step costs however short it is weighs too much in them.
LEAST_CHUNK = 16
# Of what was measured, for what differs from step to step.
MARGIN = 1.1
# Attention scores in bytes for each head, token and key were seen at 1.2 to 2.6 times their size where they are
# materialised; fused kernels need less.
SCORE_FACTOR = 3
# Chunks of twice the size were seen to take up to 1.4 times as much for each token; sizes are half of that apart. A
# smaller one has what any step costs to bear alone.
_GROWTH = math.sqrt(1.4)
_SHRINKING = 1.06
_MOST_GROWTH = 3.0
_REMEMBERED = 8
# A model of which nothing was measured yet: keys that its scores are priced with at least, for its other activations.
_LEAST_KEYS = 1024
# Heads of a model whose configuration does not tell.
_ASSUMED_HEADS = 32


@dataclass(frozen=True, slots=True)
class Shape:
    """What configurations tell: attention heads, 0 when unknown, and bytes of a number."""

    heads: int = 0
    itemsize: int = 4

    @property
    def slope(self) -> float:
        """Bytes that each key more costs each token at most."""
        return SCORE_FACTOR * (self.heads or _ASSUMED_HEADS) * self.itemsize


@dataclass(frozen=True, slots=True)
class _Cell:
    """The last measurements of similar steps, newest last: bytes for each token, and the deepest of them."""

    keys: int
    values: tuple[float, ...]

    @property
    def upper(self) -> float:
        return max(self.values)

    def with_value(self, keys: int, value: float) -> _Cell:
        return _Cell(max(self.keys, keys), (*self.values, value)[-_REMEMBERED:])


@dataclass(frozen=True, slots=True)
class Transients:
    """An immutable table: `observed` gives the next one, so that any thread may read the present one.

    Cells are kept by size of the chunk, then by depth.
    """

    shape: Shape = Shape()
    sizes: Mapping[int, Mapping[int, _Cell]] = field(default_factory=dict)

    def observed(self, rows: int, chunk: int, keys: int, nbytes: int) -> Transients:
        """After a step took `nbytes` beyond its cache for `chunk` tokens of each of `rows` prompts, the deepest of
        which then had `keys` tokens.
        """
        if chunk < LEAST_CHUNK or rows < 1 or nbytes < 0:
            return self
        size, depth = _size(chunk), (keys - 1) // STEP
        cells = self.sizes.get(size, {})
        cell = cells.get(depth, _Cell(keys, ())).with_value(keys, nbytes / (rows * chunk))
        return replace(self, sizes={**self.sizes, size: {**cells, depth: cell}})

    def estimate(self, rows: int, chunk: int, keys: int) -> int:
        """Upper bound in bytes of a step that is yet to come. Without any measurement the configuration's: scores of
        all heads over at least 1024 keys, which also covers other activations.
        """
        if not self.sizes:
            return int(rows * chunk * max(keys, _LEAST_KEYS) * self.shape.slope)
        size, depth = _size(chunk), (keys - 1) // STEP
        bounds = (
            min(_MOST_GROWTH, (_GROWTH if size > other else _SHRINKING) ** abs(size - other))
            * self._token_bytes(cells, keys)
            for other, cells in self.sizes.items()
        )
        # a measurement of another size may be a low one; a deeper step never takes less
        alike = (cell.upper for known, cell in self.sizes.get(size, {}).items() if known <= depth)
        return int(MARGIN * rows * chunk * max([min(bounds), *alike]))

    def _token_bytes(self, cells: Mapping[int, _Cell], keys: int) -> float:
        """Bytes for each token, from the nearest cell that is as deep, or else from the deepest."""
        depth = (keys - 1) // STEP
        cell = cells[min((known for known in cells if known >= depth), default=max(cells))]
        return cell.upper + self._slope(cells) * max(0, keys - cell.keys)

    def _slope(self, cells: Mapping[int, _Cell]) -> float:
        """Bytes for each token and key more: from the two ends of what was measured. It falls with depth, so beyond
        them this is an upper bound.
        """
        first, last = cells[min(cells)], cells[max(cells)]
        if last.keys - first.keys < STEP:
            return self.shape.slope
        return min(max(0.0, last.upper - first.upper) / (last.keys - first.keys), self.shape.slope)


def _size(chunk: int) -> int:
    """Chunks of about one size: the nearest power of the square root of two."""
    return round(2 * math.log2(chunk))
