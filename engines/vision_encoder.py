"""Makes features of images, one image at a time and in stretches, on the engine's lane."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from mlxd.engines.image_price import ImagePrice
from mlxd.engines.peak_meter import PeakMeter
from mlxd.engines.prompt_images import PreparedImage
from mlxd.engines.resumable import Resumable
from mlxd.engines.turns import ASIDE, Turns
from mlxd.engines.vision_blocks import evaluate_blocks
from mlxd.engines.vision_processor import IDS
from mlxd.engines.vision_rows import ImageFeatures

PIXELS, MASK = "pixel_values", "attention_mask"


@dataclass(frozen=True, slots=True)
class EncoderWatch:
    """What an encoder looks at: the meter of its lane, and whose turn it is where models share the processor, None
    where they do not.
    """

    meter: PeakMeter
    turns: Turns | None = None


class ImageEncoder:
    """`model` is mlx-vlm's, whose weights are read; `price` gets more exact with each image that is encoded while
    nobody else computes.
    """

    def __init__(self, model: Any, image_token: int, watch: EncoderWatch, price: ImagePrice) -> None:
        self._model = model
        self._image_token = image_token
        self._watch = watch
        self._at_work: Encoding | None = None
        self._rests_until = 0.0
        self.price = price
        evaluate_blocks(model, self._after_block)

    def begin(self, image: PreparedImage) -> Encoding:
        """One image, to be encoded by `Encoding.go_on`."""
        return Encoding(self, image)

    def encode(self, image: PreparedImage) -> ImageFeatures:
        """The features of one image, in one go. Raises whatever the model does."""
        features = self.begin(image).go_on(math.inf)
        assert features is not None, "nothing ends a stretch that has no end"
        return features

    def stretch(self, encoding: Encoding, seconds: float) -> None:
        """Work at an image until a block ends after so many seconds, or it is done."""
        self._at_work = encoding
        started = time.monotonic()
        encoding.ends_at = started + seconds
        try:
            with self._watch.meter.measured() as peak:
                encoding.features = encoding.work.go_on()
        finally:
            self._at_work = None
            ended = time.monotonic()
            self._rests_until = ended + (ended - started) * ASIDE
        encoding.note(peak.nbytes, peak.kept)
        if encoding.features is not None:
            self._done(encoding)

    def features(self, image: PreparedImage) -> ImageFeatures:
        """Run the model on one image; pauses between its blocks."""
        inputs = {name: mx.array(array) for name, array in image.inputs.items()}
        ids, pixels, mask = inputs.pop(IDS), inputs.pop(PIXELS), inputs.pop(MASK, None)
        made = self._model.get_input_embeddings(ids, pixels, mask=mask, **inputs)
        places = mx.array(np.flatnonzero(image.inputs[IDS].reshape(-1) == self._image_token))
        deep = made.deepstack_visual_embeds
        # a copy: a view would hold the whole prompt's
        features = ImageFeatures(mx.contiguous(made.inputs_embeds[0][places]), [] if deep is None else list(deep))
        mx.eval(features.rows, *features.deep)
        return features

    def is_rested(self, patience: float) -> bool:
        """Leave the processor to other engines for as long as is due after the last stretch, of whichever image, but no
        more than `patience` seconds; whether the next may begin.
        """
        turns = self._watch.turns
        return turns is None or turns.rest(self._rests_until, own=1, patience=patience)

    def _after_block(self) -> None:
        encoding = self._at_work
        if encoding is not None and time.monotonic() >= encoding.ends_at:
            encoding.work.pause()

    def _done(self, encoding: Encoding) -> None:
        if encoding.height is not None:
            self.price = self.price.observed(encoding.image, encoding.height)


class Encoding:
    """One image that is being encoded. `height` are the bytes that it took at most, None when others took part."""

    def __init__(self, encoder: ImageEncoder, image: PreparedImage) -> None:
        self._encoder = encoder
        self.image = image
        self.work = Resumable(lambda: encoder.features(image))
        self.features: ImageFeatures | None = None
        self.ends_at = time.monotonic()
        self.height: int | None = 0
        self._held = 0

    def go_on(self, seconds: float, patience: float = math.inf) -> ImageFeatures | None:
        """Work for about so many seconds, a block at least; the features once they are there. Raises what the model
        does.

        After a stretch it rests beside other engines. A call waits for the end of that at most `patience` seconds, and
        then leaves the work as it is.
        """
        if self._encoder.is_rested(patience):
            self._encoder.stretch(self, seconds)
        return self.features

    def drop(self) -> None:
        """Give it up, and what it holds."""
        self.work.drop()

    def note(self, peak: int | None, kept: int) -> None:
        """After a stretch took `peak` bytes beyond what there was, of which `kept` stay."""
        self.height = None if peak is None or self.height is None else max(self.height, self._held + peak)
        self._held += kept
