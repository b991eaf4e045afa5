"""What images take in memory: the height of their encoding, and the features that stay until their prompt is
processed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import prod

from mlxd.engines.prompt_images import PreparedImage, PromptImages
from mlxd.engines.transients import MARGIN, Transients

# Patches of models that do not tell have so many pixels on a side.
ASSUMED_PATCH = 14
_FLAT, _PICTURE = 2, 3


@dataclass(frozen=True, slots=True)
class ImageNeed:
    """Bytes: `kept` beside the caches until the prompt is processed, `peak` while the dearest image is encoded."""

    kept: int = 0
    peak: int = 0


NO_IMAGES = ImageNeed()


@dataclass(frozen=True, slots=True)
class EncoderShape:
    """What the encoder sees of one image: `tiles` of so many `patches`, which attend to each other within a tile."""

    tiles: int
    patches: int


@dataclass(frozen=True, slots=True)
class LargestTile:
    """Of all that were measured: its patches, 0 before there is one, and the bytes that its encoding took."""

    patches: int = 0
    nbytes: float = 0.0

    def seen(self, patches: int, nbytes: float) -> LargestTile:
        """After a tile of so many patches took so many bytes."""
        if nbytes <= 0 or (patches, nbytes) < (self.patches, self.nbytes):
            return self
        return LargestTile(patches, nbytes)

    def bound(self, patches: int) -> float:
        """Bytes that a larger tile takes at most: nothing in an encoder grows faster than the square of its patches."""
        return MARGIN * self.nbytes * (patches / self.patches) ** 2 if 0 < self.patches < patches else math.inf


@dataclass(frozen=True, slots=True)
class ImagePrice:
    """Prices of one vision model; immutable, for any thread. `patch` is the side of a patch in pixels, `token_bytes`
    are those of the features of one image token.
    """

    patch: int = ASSUMED_PATCH
    token_bytes: int = 0
    transients: Transients = field(default_factory=Transients)
    largest: LargestTile = LargestTile()

    def of(self, images: PromptImages | None, cached: int = 0) -> ImageNeed:
        """What a prompt's images take of which the first `cached` image tokens need not be processed."""
        return NO_IMAGES if images is None else self.sum(images.tail(cached))

    def sum(self, images: Iterable[PreparedImage]) -> ImageNeed:
        """What these images take, each once."""
        needed = {image.digest: image for image in images}.values()
        kept = sum(image.tokens for image in needed) * self.token_bytes
        return ImageNeed(kept, max((self.encoding(image) for image in needed), default=0))

    def encoding(self, image: PreparedImage) -> int:
        """Bytes that one image takes while it is encoded, its pixels included."""
        shape = self.shape(image)
        learned = self.transients.estimate(shape.tiles, shape.patches, shape.patches)
        return image.nbytes + int(min(learned, shape.tiles * self.largest.bound(shape.patches)))

    def observed(self, image: PreparedImage, nbytes: int) -> ImagePrice:
        """After encoding an image took `nbytes`."""
        shape = self.shape(image)
        taken = max(0, nbytes - image.nbytes)
        seen = self.transients.observed(shape.tiles, shape.patches, shape.patches, taken)
        return replace(self, transients=seen, largest=self.largest.seen(shape.patches, taken / shape.tiles))

    def shape(self, image: PreparedImage) -> EncoderShape:
        """Read from the largest array, the pixels: one patch a line, or pictures of [channels, height, width]."""
        pixels = max(image.inputs.values(), key=lambda array: array.size)
        if pixels.ndim <= _FLAT:
            return EncoderShape(1, max(1, pixels.shape[0]))
        # the channels are the shortest of the three, wherever they stand
        height, width = sorted(pixels.shape[-_PICTURE:])[1:]
        return EncoderShape(prod(pixels.shape[:-_PICTURE]), max(1, (height // self.patch) * (width // self.patch)))
