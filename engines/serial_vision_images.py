"""The images of a prompt for a vision model whose rows cannot be batched: they are encoded together, as the prompt is
embedded.
"""

from __future__ import annotations

import math
from dataclasses import replace

from mlxd.engines.image_price import ImagePrice
from mlxd.engines.prompt_images import PreparedImage
from mlxd.engines.resumable import Resumable
from mlxd.engines.serial_vision_sequence import SerialSequence
from mlxd.engines.vision_encoder import Encoding, ImageEncoder
from mlxd.engines.vision_rows import ImageFeatures


class PromptEncoding(Encoding):
    """As Encoding, of all images of a sequence's prompt, any of which is `image`: each has the inputs of all."""

    def __init__(self, encoder: ImageEncoder, image: PreparedImage, sequence: SerialSequence) -> None:
        super().__init__(encoder, image)
        self.work = Resumable(lambda: ImageFeatures(sequence.embed()))


def price_of_images(price: ImagePrice, row_bytes: int, tokens: int, sequence: SerialSequence) -> ImagePrice:
    """After a prompt was embedded that has so many image tokens: what it holds beside the embeddings of its text, which
    take `row_bytes` each.
    """
    held = sequence.beside_nbytes - (sequence.left - tokens) * row_bytes
    return replace(price, token_bytes=max(price.token_bytes, math.ceil(held / tokens)))
