"""Decodes image files. Pillow comes with the vision extra: it is imported when the first image is."""

from __future__ import annotations

import hashlib
import importlib
import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from mlxd.engines.errors import InvalidRequest
from mlxd.engines.prompt_images import ImageInput

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
_STILL = ("PNG", "WEBP")
# Pixels of the shorter side: processors divide by what is left of it after they have made it small, and take a side of
# one or three for the colours.
LEAST_SIDE = 4


def decode_images(images: Sequence[ImageInput]) -> list[Any]:
    """The images of one prompt as PIL images. They have at most their `max_pixels` together; equal files are decoded
    once, and count once. Raises InvalidRequest that names the place of the first that is at fault.
    """
    pictures: dict[bytes, Any] = {}
    taken = 0
    for image in images:
        if image.data not in pictures:
            picture = pictures[image.data] = decode_image(image, taken)
            taken += picture.width * picture.height
    return [pictures[image.data] for image in images]


def decode_image(image: ImageInput, taken: int = 0) -> Any:
    """A PIL image, RGB and upright; of a GIF the first frame. Of its pixels `taken` are others'. Transparent ones are
    laid on white.

    Raises InvalidRequest that names the image's place.
    """
    pillow = importlib.import_module("PIL.Image")
    operations = importlib.import_module("PIL.ImageOps")
    with _explained(image, pillow), warnings.catch_warnings():
        # the limit of ours is lower, and an error
        warnings.simplefilter("ignore", pillow.DecompressionBombWarning)
        opened = pillow.open(io.BytesIO(image.data), formats=FORMATS)
        _check_still(image, opened)
        width, height = opened.size
        _check_size(image, width, height, taken)
        opened.load()
        upright = operations.exif_transpose(opened)
    return _opaque(upright, pillow)


def image_digest(picture: Any) -> bytes:
    """A digest of a decoded image's pixels and size."""
    digest = hashlib.blake2b(repr(picture.size).encode(), digest_size=32)
    digest.update(picture.tobytes())
    return digest.digest()


def grey_picture(side: int) -> Any:
    """A PIL image of one grey."""
    return importlib.import_module("PIL.Image").new("RGB", (side, side), (128, 128, 128))


@contextmanager
def _explained(image: ImageInput, pillow: Any) -> Iterator[None]:
    try:
        yield
    except pillow.UnidentifiedImageError:
        message = f"{image.param}: this is no image that can be read; send a PNG, JPEG, WebP or GIF file"
        raise InvalidRequest(message, image.param) from None
    except pillow.DecompressionBombError:
        # a limit of the library's own, beyond which it tells no size
        most = min(image.max_pixels, 2 * pillow.MAX_IMAGE_PIXELS)
        message = (
            f"{image.param}: the image has too many pixels, at most {most} are taken (images.max_pixels); "
            "make it smaller"
        )
        raise InvalidRequest(message, image.param) from None
    except InvalidRequest:
        raise
    # a decoder raises whatever its parser met: all of it means that the file is broken
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise InvalidRequest(f"{image.param}: the image is broken: {reason}", image.param) from error


def _check_still(image: ImageInput, opened: Any) -> None:
    """What moves is refused, but for a GIF, which is known to stand for its first frame."""
    if opened.format in _STILL and getattr(opened, "n_frames", 1) > 1:
        message = f"{image.param}: the {opened.format} file is animated; send a still image"
        raise InvalidRequest(message, image.param)


def _check_size(image: ImageInput, width: int, height: int, taken: int) -> None:
    if width * height + taken > image.max_pixels:
        beside = f" and those before it {taken}" if taken else ""
        message = (
            f"{image.param}: the image has {width} x {height} pixels{beside}, at most {image.max_pixels} are taken "
            "(images.max_pixels); make it smaller"
        )
        raise InvalidRequest(message, image.param)
    if min(width, height) < LEAST_SIDE:
        message = f"{image.param}: the image has {width} x {height} pixels; each side needs {LEAST_SIDE} or more"
        raise InvalidRequest(message, image.param)


def _opaque(picture: Any, pillow: Any) -> Any:
    if picture.mode == "RGB":
        return picture
    if picture.mode.startswith("I"):
        # 16 bits of grey, which the library would cut off at 255
        return pillow.fromarray((np.asarray(picture).astype(np.uint16) >> 8).astype(np.uint8)).convert("RGB")
    if not picture.has_transparency_data:
        return picture.convert("RGB")
    seen = picture.convert("RGBA")
    white = pillow.new("RGBA", seen.size, (255, 255, 255, 255))
    return pillow.alpha_composite(white, seen).convert("RGB")
