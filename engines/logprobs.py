"""Log-probabilities of sampled tokens and of the likeliest ones, read from the batch's rows."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import mlx.core as mx

from mlxd.engines.types import TokenLogprobs

_ID_BITS = 32
_ID_MASK = 2**_ID_BITS - 1
_MAGNITUDE = 0x7FFFFFFF


def token_logprobs(row: mx.array, token: int, count: int) -> TokenLogprobs:
    """The logprob of `token` and the `count` likeliest tokens of one row `[vocab]`."""
    return batch_logprobs([row], [token], [count])[0]


def batch_logprobs(rows: Sequence[mx.array], tokens: Sequence[int], counts: Sequence[int]) -> list[TokenLogprobs]:
    """The same for several rows of normalised logprobs, with one evaluation for all.

    Of equally likely tokens those with lower ids come first. Tokens without any probability are not among the
    likeliest, so there may be fewer than asked for.
    """
    if not rows:
        return []
    keys = _sortable(mx.stack(list(rows)))
    picked = mx.take_along_axis(keys, mx.array(list(tokens))[:, None], axis=-1)
    most = min(max(counts), keys.shape[-1])
    if most:
        picked = mx.concatenate([picked, mx.topk(keys, most, axis=-1)], axis=-1)
    values: list[list[int]] = picked.tolist()  # type: ignore[assignment]
    return [_logprobs(row, count) for row, count in zip(values, counts, strict=True)]


def _sortable(rows: mx.array) -> mx.array:
    """`[rows, vocab]` of floats as 64-bit keys in the order of (value, -id), from which both can be read again."""
    # adding 0 makes -0.0 and 0.0 one value
    bits = (rows.astype(mx.float32) + 0.0).view(mx.int32)
    ordered = mx.where(bits < 0, bits ^ _MAGNITUDE, bits).astype(mx.int64)
    ids = mx.arange(rows.shape[-1], dtype=mx.int64)
    keys: mx.array = ordered * (1 << _ID_BITS) + (_ID_MASK - ids)
    return keys


def _logprobs(keys: list[int], count: int) -> TokenLogprobs:
    own, *others = keys
    token, logprob = _read(own)
    top = (_read(key) for key in sorted(others, reverse=True)[:count])
    return TokenLogprobs(token, logprob, tuple(pair for pair in top if pair[1] > -float("inf")))


def _read(key: int) -> tuple[int, float]:
    ordered = key >> _ID_BITS
    bits = ordered ^ _MAGNITUDE if ordered < 0 else ordered
    (value,) = struct.unpack("<f", struct.pack("<i", bits))
    return _ID_MASK - (key & _ID_MASK), value
