"""The first steps of a loaded model, before anybody asks: they show what its caches cost, and that it runs at all."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from mlxd.engines.cache_cost import CacheCost
from mlxd.engines.cache_sizes import cost_of
from mlxd.engines.errors import LoadError, LoadFailure
from mlxd.engines.loader import LoadedText, is_out_of_memory
from mlxd.engines.peak_meter import PeakMeter
from mlxd.engines.prompt_price import PromptPrice
from mlxd.engines.transients import LEAST_CHUNK, Shape, Transients
from mlxd.engines.types import EngineConfig

# Tokens of the second step, the first chunk that a prompt is taken in, and the seconds that the first may have taken
# for there to be one: a slow model learns from its first prompt instead.
SECOND = 64
QUICK = 0.05


def first_look(
    loaded: LoadedText, config: EngineConfig, meter: PeakMeter, announce: Callable[[int], None] = lambda _: None
) -> PromptPrice:
    """Process a few tokens; `announce` is told how many, before each time. Raises LoadError for a model that cannot."""
    models = [one for one in (loaded.model, loaded.draft) if one is not None]
    transients = Transients(Shape(config.attention_heads, config.itemsize))
    started = time.perf_counter()
    announce(LEAST_CHUNK)
    cost, transients = _step(models, LEAST_CHUNK, loaded.info.vocab_size, meter, transients)
    if time.perf_counter() - started < QUICK:
        announce(SECOND)
        _, transients = _step(models, SECOND, loaded.info.vocab_size, meter, transients)
    mx.clear_cache()
    return PromptPrice(cost, transients, loaded.info.vocab_size)


def glance(model: Any, tokens: int, vocab_size: int) -> list[Any]:
    """Process so many tokens; the caches that came of it, evaluated."""
    layers: list[Any] = make_prompt_cache(model)
    model(mx.arange(tokens)[None] % vocab_size, cache=layers)
    mx.eval([layer.state for layer in layers])
    return layers


def _step(
    models: list[Any], tokens: int, vocab_size: int, meter: PeakMeter, transients: Transients
) -> tuple[CacheCost, Transients]:
    try:
        with meter.measured() as peak:
            layers = [layer for model in models for layer in glance(model, tokens, vocab_size)]
    # Whatever a forward pass raises, every request would meet it.
    except Exception as error:
        message = f"its first step failed: {type(error).__name__}: {error}"
        reason = LoadFailure.OUT_OF_MEMORY if is_out_of_memory(error) else LoadFailure.UNSUPPORTED
        raise LoadError(reason, message) from error
    if peak.nbytes is not None:
        kept = sum(layer.nbytes for layer in layers)
        transients = transients.observed(1, tokens, tokens, max(0, peak.nbytes - kept))
    return cost_of(layers), transients
