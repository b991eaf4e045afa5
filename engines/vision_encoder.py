"""Makes features of images, one image at a time, on the engine's lane."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np

from mlxd.engines.image_price import ImagePrice
from mlxd.engines.peak_meter import PeakMeter
from mlxd.engines.prompt_images import PreparedImage
from mlxd.engines.vision_processor import IDS
from mlxd.engines.vision_rows import ImageFeatures

PIXELS, MASK = "pixel_values", "attention_mask"


class ImageEncoder:
    """`model` is mlx-vlm's; `price` gets more exact with each image that is encoded while nobody else computes."""

    def __init__(self, model: Any, image_token: int, meter: PeakMeter, price: ImagePrice) -> None:
        self._model = model
        self._image_token = image_token
        self._meter = meter
        self.price = price
        self.encoded = 0

    def encode(self, image: PreparedImage) -> ImageFeatures:
        """The features of one image. Raises whatever the model does."""
        with self._meter.measured() as peak:
            features = self._features(image)
            mx.eval(features.rows, *features.deep)
        self.encoded += 1
        if peak.nbytes is not None:
            self.price = self.price.observed(image, peak.nbytes)
        mx.clear_cache()
        return features

    def _features(self, image: PreparedImage) -> ImageFeatures:
        inputs = {name: mx.array(array) for name, array in image.inputs.items()}
        ids, pixels, mask = inputs.pop(IDS), inputs.pop(PIXELS), inputs.pop(MASK, None)
        made = self._model.get_input_embeddings(ids, pixels, mask=mask, **inputs)
        places = mx.array(np.flatnonzero(image.inputs[IDS].reshape(-1) == self._image_token))
        deep = made.deepstack_visual_embeds
        # a copy: a view would hold the whole prompt's
        return ImageFeatures(mx.contiguous(made.inputs_embeds[0][places]), [] if deep is None else list(deep))
