"""Samplers and logits processors for one row, from mlx-lm's pieces."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import mlx.core as mx
from mlx_lm.sample_utils import (
    apply_min_p,
    apply_top_k,
    apply_top_p,
    greedy_sampler,
    make_logits_processors,
    make_sampler,
)

from mlxd.engines.types import SamplingParams

Sampler = Callable[[mx.array], mx.array]
LogitsProcessor = Callable[[mx.array, mx.array], mx.array]

# MLX slices take 32-bit integers.
WHOLE_CONTEXT = 2**31 - 1


def row_sampler(params: SamplingParams, vocab_size: int) -> Sampler:
    """The sampler of one row: logprobs `[rows, vocab]` to tokens `[rows]`.

    Rows without a seed and with equal settings get the same object, so that the batch samples them in one call.
    """
    if params.temperature == 0:
        greedy: Sampler = greedy_sampler
        return greedy
    top_k = params.top_k if params.top_k < vocab_size else 0
    if params.seed is not None:
        return SeededSampler(params, top_k)
    return _shared_sampler(params.temperature, params.top_p, params.min_p, top_k)


@lru_cache(maxsize=256)
def _shared_sampler(temperature: float, top_p: float, min_p: float, top_k: int) -> Sampler:
    sampler: Sampler = make_sampler(temperature, top_p=top_p, min_p=min_p, top_k=top_k)
    return sampler


class SeededSampler:
    """Samples one row with a random key of its own, so that its answer does not depend on its neighbours."""

    def __init__(self, params: SamplingParams, top_k: int) -> None:
        self._params = params
        self._top_k = top_k
        self._key = mx.random.key(params.seed or 0)

    def __call__(self, logprobs: mx.array) -> mx.array:
        params = self._params
        # the order of mlx-lm's make_sampler
        if 0 < params.top_p < 1:
            logprobs = apply_top_p(logprobs, params.top_p)
        if params.min_p > 0:
            logprobs = apply_min_p(logprobs, params.min_p, 1)
        if self._top_k > 0:
            logprobs = apply_top_k(logprobs, self._top_k)
        self._key, key = mx.random.split(self._key)
        return mx.random.categorical(logprobs * (1.0 / params.temperature), key=key)


def row_processors(params: SamplingParams, prompt_tokens: int) -> list[LogitsProcessor]:
    """The logits processors of one row, in mlx-lm's order; the repetition penalty reads the prompt too."""
    processors: list[LogitsProcessor] = make_logits_processors(
        dict(params.logit_bias) or None,
        repetition_penalty=params.repetition_penalty if params.repetition_penalty != 1 else None,
        repetition_context_size=WHOLE_CONTEXT,
    )
    generated = make_logits_processors(
        presence_penalty=params.presence_penalty,
        presence_context_size=WHOLE_CONTEXT,
        frequency_penalty=params.frequency_penalty,
        frequency_context_size=WHOLE_CONTEXT,
    )
    return processors + [_after_prompt(processor, prompt_tokens) for processor in generated]


def _after_prompt(processor: LogitsProcessor, prompt_tokens: int) -> LogitsProcessor:
    def process(tokens: mx.array, logits: Any) -> Any:
        return processor(tokens[prompt_tokens:], logits)

    return process
