"""Samplers and logits processors for one row, from mlx-lm's pieces.

The order is vLLM's: guide, `min_tokens`, `logit_bias`, penalties; then what is kept of the distribution in mlx-lm's
order (top_p, min_p, XTC, top_k), and the temperature last.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import mlx.core as mx
from mlx_lm.generate import StopSequences
from mlx_lm.sample_utils import apply_top_k, greedy_sampler, make_logits_processors

from mlxd.engines.guide_processor import row_guide
from mlxd.engines.row_faults import LogitsProcessor, RowFault, Sampler
from mlxd.engines.sampling_filters import exclude_top_choices, keep_min_p, keep_top_p
from mlxd.engines.tokenizer import Tokenizer
from mlxd.engines.types import Request, SamplingParams

# MLX slices take 32-bit integers.
WHOLE_CONTEXT = 2**31 - 1
_NEVER = -float("inf")
_GOLDEN = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class _Settings:
    """What of a request's parameters its sampler needs; `spared` are tokens that XTC leaves alone."""

    temperature: float
    top_p: float
    min_p: float
    top_k: int
    xtc_probability: float
    xtc_threshold: float
    spared: tuple[int, ...]

    def keep(self, logprobs: mx.array, draws: mx.array | None) -> mx.array:
        """Logprobs `[rows, vocab]`, with -inf for tokens that are out; XTC decides by one draw for each row."""
        if 0 < self.top_p < 1:
            logprobs = keep_top_p(logprobs, self.top_p)
        if self.min_p > 0:
            logprobs = keep_min_p(logprobs, self.min_p)
        if draws is not None:
            logprobs = exclude_top_choices(logprobs, draws, self.xtc_probability, self.xtc_threshold, self.spared)
        if self.top_k > 0:
            logprobs = apply_top_k(logprobs, self.top_k)
        return logprobs * (1.0 / self.temperature)


def row_sampler(params: SamplingParams, vocab_size: int, spared: tuple[int, ...] = (), drawn: int = 0) -> Sampler:
    """The sampler of one row: logprobs `[rows, vocab]` to tokens `[rows]`. XTC never drops the tokens `spared`.
    `drawn` tokens of the row were sampled before.

    Rows without a seed and with equal settings get the same object, so that the batch samples them in one call.
    """
    if params.temperature == 0:
        greedy: Sampler = greedy_sampler
        return greedy
    settings = _Settings(
        params.temperature,
        params.top_p,
        params.min_p,
        params.top_k if params.top_k < vocab_size else 0,
        params.xtc_probability,
        params.xtc_threshold,
        tuple(token for token in spared if token < vocab_size) if params.xtc_probability > 0 else (),
    )
    return _shared_sampler(settings) if params.seed is None else SeededSampler(settings, params.seed, drawn)


@lru_cache(maxsize=256)
def _shared_sampler(settings: _Settings) -> Sampler:
    def sample(logprobs: mx.array) -> mx.array:
        draws = mx.random.uniform(shape=(logprobs.shape[0], 1)) if settings.xtc_probability > 0 else None
        return mx.random.categorical(settings.keep(logprobs, draws))

    return sample


class SeededSampler:
    """Samples one row with random keys of its own, one for each token, so that its answer depends neither on its
    neighbours nor on whether it was interrupted after `drawn` tokens.
    """

    def __init__(self, settings: _Settings, seed: int, drawn: int = 0) -> None:
        self._settings = settings
        self._seed = seed
        self._drawn = drawn

    def __call__(self, logprobs: mx.array) -> mx.array:
        # Steele et al., "Fast Splittable Pseudorandom Number Generators" (2014): steps of a Weyl sequence
        key, spare = mx.random.split(mx.random.key((self._seed + self._drawn * _GOLDEN) % 2**64))
        self._drawn += 1
        draws = None
        if self._settings.xtc_probability > 0:
            draws = mx.random.uniform(shape=(logprobs.shape[0], 1), key=spare)
        return mx.random.categorical(self._settings.keep(logprobs, draws), key=key)


def row_processors(request: Request, tokenizer: Tokenizer) -> list[LogitsProcessor]:
    """The logits processors of one row: called with its tokens, prompt included, and its logits `[1, vocab]`.

    Raises InvalidRequest for a guide that does not compile.
    """
    params, prompt_tokens = request.sampling, len(request.prompt)
    processors: list[LogitsProcessor] = []
    if params.guide is not None:
        processors.append(row_guide(params.guide, tokenizer, request.prompt, reasons=request.chat is not None))
    if params.min_tokens > 0:
        processors.append(MinTokens(params.min_tokens, tokenizer.end_tokens, prompt_tokens))
    return processors + _biases_and_penalties(params, prompt_tokens)


def row_options(
    request: Request, tokenizer: Tokenizer, vocab_size: int, fault: RowFault | None = None, drawn: int = 0
) -> dict[str, list[Any]]:
    """BatchGenerator's `insert` options of one row that has `drawn` tokens already. What goes wrong in them during a
    step is put into `fault`.

    Raises InvalidRequest for a guide that does not compile.
    """
    params = request.sampling
    sampler = row_sampler(params, vocab_size, spared_tokens(params, tokenizer), drawn)
    processors = row_processors(request, tokenizer)
    if fault is not None:
        processors = [fault.processor(each) for each in processors]
        sampler = fault.sampler(sampler) if isinstance(sampler, SeededSampler) else sampler
    options: dict[str, list[Any]] = {"samplers": [sampler], "logits_processors": [processors]}
    if params.ignore_eos:
        options["stop_sequences"] = [StopSequences()]
    return options


def spared_tokens(params: SamplingParams, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Tokens that XTC never drops: those that end a sequence and those of a line break, as in mlx-lm's server."""
    if params.xtc_probability <= 0:
        return ()
    return (*tokenizer.encode("\n"), *sorted(tokenizer.end_tokens))


class MinTokens:
    """Allows no end token before `count` tokens are generated, unless nothing else is allowed."""

    def __init__(self, count: int, end_tokens: frozenset[int], prompt_tokens: int) -> None:
        self._until = prompt_tokens + count
        self._end_tokens = sorted(end_tokens)

    def __call__(self, tokens: mx.array, logits: mx.array) -> mx.array:
        if tokens.size >= self._until:
            return logits
        masked = mx.array(logits)
        masked[:, [token for token in self._end_tokens if token < logits.shape[-1]]] = _NEVER
        # a guide may be complete before: then there is nothing but its end
        return mx.where(mx.max(masked) == _NEVER, logits, masked)


def _biases_and_penalties(params: SamplingParams, prompt_tokens: int) -> list[LogitsProcessor]:
    """In mlx-lm's order; the repetition penalty reads the prompt too."""
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
