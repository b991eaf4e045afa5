"""The first steps of a vision model whose rows cannot be batched: what its prompts cost, and that it runs at all."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from itertools import cycle, islice

import mlx.core as mx
import numpy as np
from mlx_vlm.generate.diffusion import is_diffusion_model

from mlxd.engines.cache_cost import CacheCost
from mlxd.engines.cache_sizes import cost_of
from mlxd.engines.errors import LoadError, LoadFailure
from mlxd.engines.image_price import ImagePrice
from mlxd.engines.image_trial import try_images
from mlxd.engines.loader import is_out_of_memory
from mlxd.engines.peak_meter import PeakMeter
from mlxd.engines.prompt_price import PromptPrice
from mlxd.engines.serial_vision_images import PromptEncoding, price_of_images
from mlxd.engines.serial_vision_sequence import SerialSequence, forget, single
from mlxd.engines.transients import LEAST_CHUNK, Shape, Transients
from mlxd.engines.types import EngineConfig
from mlxd.engines.vision_loader import LoadedVision
from mlxd.engines.vision_processor import IDS

# Tokens of the second text; there is one only if the first took no longer than so many seconds.
SECOND = 64
QUICK = 0.05
_TEXT = "What is the first thing that comes to your mind when you look at a model?"


@dataclass(frozen=True, slots=True)
class SerialLook:
    """What a model showed: its price, bytes of what one token is embedded to, and whether prompts without and with
    images may be processed in chunks.
    """

    price: PromptPrice
    row_bytes: int
    chunks_text: bool
    chunks_images: bool


def serial_look(loaded: LoadedVision, config: EngineConfig, meter: PeakMeter) -> SerialLook:
    """Process a few tokens, and an image or two. Raises LoadError for a model that cannot."""
    if is_diffusion_model(loaded.model):
        message = f"{config.path.name}: models that answer by diffusion are not supported"
        raise LoadError(LoadFailure.UNSUPPORTED, message)
    try:
        return _look(loaded, config, meter)
    # whatever it raises, every request would meet it
    except Exception as error:
        message = f"its first step failed: {type(error).__name__}: {error}"
        reason = LoadFailure.OUT_OF_MEMORY if is_out_of_memory(error) else LoadFailure.UNSUPPORTED
        raise LoadError(reason, message) from error
    finally:
        forget(loaded.model)
        mx.clear_cache()


def _look(loaded: LoadedVision, config: EngineConfig, meter: PeakMeter) -> SerialLook:
    transients = Transients(Shape(config.attention_heads, config.itemsize))
    started = time.perf_counter()
    text = _text(loaded, LEAST_CHUNK, meter, transients)
    if time.perf_counter() - started < QUICK:
        text = replace(text, transients=_text(loaded, SECOND, meter, text.transients).transients)
    tried = _Images(loaded, text.row_bytes)
    try_images(tried.encode)
    price = PromptPrice(text.cost, text.transients, loaded.text.info.vocab_size, tried.price)
    return SerialLook(price, text.row_bytes, text.chunked, tried.chunked)


@dataclass(frozen=True, slots=True)
class _Text:
    """What a prompt without images showed."""

    cost: CacheCost
    transients: Transients
    row_bytes: int
    chunked: bool


def _text(loaded: LoadedVision, tokens: int, meter: PeakMeter, transients: Transients) -> _Text:
    """A prompt of one token more, and a token that follows it."""
    prompt = list(islice(cycle(loaded.tokenizer.encode(_TEXT)), tokens + 1))
    sequence = SerialSequence(loaded.model, prompt)
    sequence.embed()
    row_bytes = -(-sequence.beside_nbytes // len(prompt))
    with meter.measured() as peak:
        sequence.process(tokens)
    cost = cost_of(list(single(sequence.layers)))
    if peak.nbytes is not None:
        nbytes = max(0, peak.nbytes - sequence.cache_nbytes)
        transients = transients.observed(1, sequence.length, sequence.length, nbytes)
    _end(sequence)
    return _Text(cost, transients, row_bytes, sequence.chunked)


class _Images:
    """What short prompts with one image showed: what images cost, and whether such prompts may be in chunks."""

    def __init__(self, loaded: LoadedVision, row_bytes: int) -> None:
        self._loaded = loaded
        self._row_bytes = row_bytes
        self.price: ImagePrice = loaded.encoder.price
        self.chunked = False

    def encode(self, side: int) -> None:
        """Process a prompt with one image, and a token that follows it."""
        encoder = self._loaded.encoder
        image = self._loaded.tokenizer.trial_image(side)
        sequence = SerialSequence(self._loaded.model, np.ravel(image.inputs[IDS]).tolist(), image.inputs)
        PromptEncoding(encoder, image, sequence).go_on(math.inf)
        seen = replace(encoder.price, token_bytes=self.price.token_bytes)
        self.price = price_of_images(seen, self._row_bytes, image.tokens, sequence)
        _end(sequence)
        self.chunked = sequence.chunked


def _end(sequence: SerialSequence) -> None:
    """Process what is left, and a token that follows."""
    while sequence.left:
        sequence.process(sequence.left)
    mx.eval(sequence.feed(mx.array([0])))
