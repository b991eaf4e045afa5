"""Fills in what a request does not say: its own values first, then its preset's, its model's, and the daemon's."""

from __future__ import annotations

from dataclasses import replace

from mlxd.daemon.api.answer_options import SEED_MASK, AnswerOptions
from mlxd.daemon.api.refusals import InvalidField
from mlxd.daemon.catalog import sampling_for
from mlxd.daemon.settings import Settings
from mlxd.engines.types import Guide, SamplingParams
from mlxd.registry.names import Resolved

# Below these, 32-bit logits overflow or no token is left; the first two mean "the likeliest token" anyway.
_GREEDY_BELOW = 1e-4
_LEAST_TOP_P = 1e-6
_LEAST_REPETITION_PENALTY = 1e-2

# An odd number of 64 bits: its multiples are all different, so the choices of a request have seeds of their own.
_SEED_STEP = 0x9E3779B97F4A7C15

_PASSED_ON = (
    "top_k",
    "min_p",
    "xtc_probability",
    "xtc_threshold",
    "seed",
    "stop",
    "presence_penalty",
    "frequency_penalty",
)


def sampling_params(
    settings: Settings, resolved: Resolved, options: AnswerOptions, room: int, guide: Guide | None = None
) -> SamplingParams:
    """The engine's parameters; `room` is the tokens that the context has left after the prompt.

    A limit that the request names is kept as it is; a default one never asks for more than there is room for.
    Raises InvalidField when `min_tokens` is above the limit.
    """
    given = options.sampling.over(sampling_for(settings, resolved.model, resolved.preset)).given()
    temperature = given.get("temperature", 1.0)
    max_tokens = _max_tokens(options.sampling.max_tokens, given.get("max_tokens"), settings, resolved, room)
    _check_min_tokens(options.min_tokens, max(1, room) if max_tokens is None else max_tokens)
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature if temperature >= _GREEDY_BELOW else 0.0,
        top_p=max(_LEAST_TOP_P, given.get("top_p", 1.0)),
        repetition_penalty=max(_LEAST_REPETITION_PENALTY, given.get("repetition_penalty", 1.0)),
        logit_bias=options.logit_bias,
        min_tokens=options.min_tokens,
        ignore_eos=options.ignore_eos,
        logprobs=options.logprobs,
        guide=guide,
        **{name: given[name] for name in _PASSED_ON if name in given},
    )


def for_choice(params: SamplingParams, number: int) -> SamplingParams:
    """The parameters of one of several answers to a prompt: each has a seed of its own, the first the given one."""
    if params.seed is None or number == 0:
        return params
    return replace(params, seed=(params.seed + number * _SEED_STEP) & SEED_MASK)


def _check_min_tokens(min_tokens: int, limit: int) -> None:
    if min_tokens > limit:
        raise InvalidField(f"min_tokens: {min_tokens} is more than the answer may have, {limit}", "min_tokens")


def _max_tokens(
    asked: int | None, default: int | None, settings: Settings, resolved: Resolved, room: int
) -> int | None:
    if asked is not None:
        return asked
    limit = default or settings.engine_for(resolved.model).max_tokens
    return min(limit, max(1, room)) if limit else None
