"""What a batch's caches cost.

mlx-lm's batch caches are dense: every row has as many slots as the longest. Buffers grow by steps of 256 tokens, and a
buffer that is not full is first cut to what is used, so its size depends on how a prompt was cut into chunks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

# mlx-lm's caches grow by this many tokens.
STEP = 256


@dataclass(frozen=True, slots=True)
class LayerCost:
    """Bytes of one layer's cache: for each token of a row, and for each row whatever its length.

    `window` is the number of tokens that a sliding layer keeps, None for all.
    """

    token_bytes: int
    state_bytes: int = 0
    window: int | None = None

    def bytes(self, rows: int, slots: int, chunk: int) -> int:
        """Bytes for rows of `slots` tokens. While a prompt is processed a window keeps a chunk beyond its size."""
        kept = slots if self.window is None else min(slots, self.window - 1 + chunk)
        return rows * (kept * self.token_bytes + self.state_bytes)


@dataclass(frozen=True, slots=True)
class CacheCost:
    """All layers of a model. An empty one is that of a model that has not been looked at."""

    layers: tuple[LayerCost, ...] = ()

    def bytes(self, rows: int, slots: int, chunk: int = 1) -> int:
        """Bytes of all layers for rows of `slots` tokens; `chunk` is that of the prompts among them."""
        return sum(layer.bytes(rows, slots, chunk) for layer in self.layers)

    def copy_bytes(self, rows: int, slots: int) -> int:
        """What it takes beside them to join rows to a batch or to let it grow: one layer is copied at a time."""
        return 2 * max((layer.bytes(rows, slots, 1) for layer in self.layers), default=0)


@lru_cache(maxsize=4096)
def grown(slots: int, used: int, tokens: int, chunk: int) -> int:
    """Slots of a buffer of `slots`, of which `used` are taken, after `tokens` more in chunks."""
    while tokens > 0:
        size = min(chunk, tokens)
        if used + size > slots:
            slots = (used if used % STEP else slots) + -(-size // STEP) * STEP
        used += size
        tokens -= size
    return slots
