"""What sampling keeps of a distribution, on logprobs `[rows, vocab]`; what it drops becomes -inf.

The mathematics is mlx-lm's. Its own functions are compiled with their numbers as constants: on the CPU backend every
new `top_p` or temperature would run a C++ compiler, for seconds, inside a step of everybody's batch.
"""

from __future__ import annotations

import math

import mlx.core as mx

_NEVER = -float("inf")


def keep_top_p(logprobs: mx.array, top_p: float) -> mx.array:
    """The likeliest tokens that together have a share of `top_p` of the probability."""
    ordered = mx.sort(logprobs, axis=-1)
    probs = mx.exp(ordered.astype(mx.float32))
    mass_above = mx.cumsum(probs, axis=-1, reverse=True, inclusive=False)
    total = mass_above[..., :1] + probs[..., :1]
    dropped = (mass_above >= top_p * total).sum(axis=-1, keepdims=True)
    # a share that rounding makes unreachable still leaves the likeliest token
    threshold = mx.take_along_axis(ordered, mx.minimum(dropped, logprobs.shape[-1] - 1), axis=-1)
    return mx.where(logprobs < threshold, _NEVER, logprobs)


def keep_min_p(logprobs: mx.array, min_p: float) -> mx.array:
    """Tokens that are at least `min_p` times as likely as the likeliest."""
    least = mx.max(logprobs, axis=-1, keepdims=True) + math.log(min_p)
    return mx.where(logprobs < least, _NEVER, logprobs)


def exclude_top_choices(
    logprobs: mx.array, draws: mx.array, probability: float, threshold: float, spared: tuple[int, ...]
) -> mx.array:
    """XTC: in rows whose draw is below `probability`, all tokens above `threshold` but the least likely of them go.

    `draws` are numbers in [0, 1) `[rows, 1]`, one for each row. The tokens `spared` are never dropped.
    """
    probs = mx.softmax(logprobs, axis=-1, precise=True)
    above = probs > threshold
    least = mx.where(above, probs, mx.inf).min(axis=-1, keepdims=True)
    excluded = (probs > least) & (draws < probability)
    if spared:
        excluded[..., list(spared)] = False
    return mx.where(excluded, _NEVER, logprobs)
