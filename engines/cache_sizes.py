"""Reads what mlx-lm's cache objects hold, of one sequence or of a batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from mlx_lm.models.cache import ArraysCache, BatchKVCache, CacheList

from mlxd.engines.cache_cost import CacheCost, LayerCost


def cost_of(caches: Iterable[Any]) -> CacheCost:
    """What caches of one sequence cost that hold at least one token."""
    return CacheCost(tuple(_layer(cache) for cache in flat(caches)))


def slots_of(caches: Sequence[Any]) -> int:
    """Slots of a batch's buffers in layers that keep every token; 0 when there is none, or nothing in it yet.

    All of them have as many, and this is asked at each step: the first one tells.
    """
    held = (_length(layer) for layer in flat(caches) if getattr(layer, "max_size", None) is None)
    return next((length for length in held if length), 0)


def used_of(caches: Sequence[Any]) -> int:
    """Slots that are taken in these buffers; 0 when there is none."""
    return next((layer.size() for layer in flat(caches) if isinstance(layer, BatchKVCache)), 0)


def flat(caches: Iterable[Any]) -> Iterator[Any]:
    """The caches with nested lists of them opened."""
    for cache in caches:
        if isinstance(cache, CacheList):
            yield from flat(cache.caches)
        else:
            yield cache


def _layer(cache: Any) -> LayerCost:
    if isinstance(cache, ArraysCache):
        return LayerCost(0, cache.nbytes)
    length = _length(cache)
    if not length:
        return LayerCost(0, cache.nbytes)
    return LayerCost(-(-cache.nbytes // length), window=getattr(cache, "max_size", None))


def _length(cache: Any) -> int:
    """Slots of one layer's buffer; quantised keys are a group of arrays of the same length."""
    keys = getattr(cache, "keys", None)
    if keys is None:
        return 0
    array = keys[0] if isinstance(keys, (tuple, list)) else keys
    return int(array.shape[-2])
