"""Fills in what a request does not say: its own values first, then its preset's, its model's, and the daemon's."""

from __future__ import annotations

from mlxd.daemon.api.openai_requests import AnswerOptions
from mlxd.daemon.catalog import sampling_for
from mlxd.daemon.settings import Settings
from mlxd.engines.types import SamplingParams
from mlxd.registry.names import Resolved

# Below these, 32-bit logits overflow or no token is left; the first two mean "the likeliest token" anyway.
_GREEDY_BELOW = 1e-4
_LEAST_TOP_P = 1e-6
_LEAST_REPETITION_PENALTY = 1e-2

_PASSED_ON = (
    "top_k",
    "min_p",
    "seed",
    "stop",
    "presence_penalty",
    "frequency_penalty",
)


def sampling_params(settings: Settings, resolved: Resolved, options: AnswerOptions, room: int) -> SamplingParams:
    """The engine's parameters; `room` is the tokens that the context has left after the prompt.

    A limit that the request names is kept as it is; a default one never asks for more than there is room for.
    """
    given = options.sampling.over(sampling_for(settings, resolved.model, resolved.preset)).given()
    temperature = given.get("temperature", 1.0)
    return SamplingParams(
        max_tokens=_max_tokens(options.sampling.max_tokens, given.get("max_tokens"), settings, resolved, room),
        temperature=temperature if temperature >= _GREEDY_BELOW else 0.0,
        top_p=max(_LEAST_TOP_P, given.get("top_p", 1.0)),
        repetition_penalty=max(_LEAST_REPETITION_PENALTY, given.get("repetition_penalty", 1.0)),
        logit_bias=options.logit_bias,
        **{name: given[name] for name in _PASSED_ON if name in given},
    )


def _max_tokens(
    asked: int | None, default: int | None, settings: Settings, resolved: Resolved, room: int
) -> int | None:
    if asked is not None:
        return asked
    limit = default or settings.engine_for(resolved.model).max_tokens
    return min(limit, max(1, room)) if limit else None
