"""What mlx-lm's caches of one sequence are like, and how one is taken out of a batch for good."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.models.cache import make_prompt_cache

from mlxd.engines.cache_sizes import flat
from mlxd.engines.errors import LoadError, LoadFailure

# Tokens between two places at which the cache of a model that cannot be cut back is kept, and how many at most.
CHECKPOINT_TOKENS = 512
MOST_CHECKPOINTS = 8


@dataclass(frozen=True, slots=True)
class CacheShape:
    """`recurrent` layers cannot be cut back at all, sliding ones only below `window` tokens (None without any)."""

    recurrent: bool = False
    window: int | None = None

    def is_trimmable(self, length: int) -> bool:
        """Whether the cache of `length` tokens can be cut back to any shorter prefix."""
        return not self.recurrent and (self.window is None or length < self.window)

    def checkpoints(self, start: int, end: int) -> list[int]:
        """Lengths between `start` and `end` after which a prompt's cache is worth keeping, apart from its end.

        A cache that can be cut back serves every shorter prefix. Others serve only as they are: they are kept at
        multiples of a power of two, which prompts of different lengths have in common.
        """
        if self.is_trimmable(end):
            return []
        stride = CHECKPOINT_TOKENS
        while end // stride > MOST_CHECKPOINTS:
            stride *= 2
        return [length for length in range(stride, end, stride) if length > start]


def cache_shape(model: Any) -> CacheShape:
    """Look at the caches that the model makes for a sequence."""
    layers = list(flat(make_prompt_cache(model)))
    windows = [layer.max_size for layer in layers if getattr(layer, "max_size", None)]
    return CacheShape(
        recurrent=any(not layer.is_trimmable() for layer in layers), window=min(windows) if windows else None
    )


def check_batchable(model: Any) -> None:
    """Raise LoadError for a model whose caches mlx-lm cannot batch."""
    kinds = sorted({type(layer).__name__ for layer in make_prompt_cache(model) if not hasattr(layer, "merge")})
    if kinds:
        message = f"mlx-lm cannot batch this model: its {', '.join(kinds)} has no batched form yet"
        raise LoadError(LoadFailure.UNSUPPORTED, message)


def detach(layers: list[Any]) -> list[Any]:
    """Copy a sequence's cache out of its batch, evaluated: what mlx-lm extracts may be a view that holds all rows."""
    for layer in layers:
        layer.state = tree_map(_copied, layer.state)
        mx.eval(layer.state)
    return layers


def _copied(leaf: Any) -> Any:
    if not isinstance(leaf, mx.array) or leaf.ndim == 0:
        return leaf
    # taking rows always writes a new buffer
    return leaf[mx.arange(leaf.shape[0])]
