"""Prepared images stay in the worker. The daemon gets their outline, which prices and counts as they do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlxd.engines.imported_later import later
from mlxd.engines.prompt_images import Arrays, PreparedImage, PromptImages
from mlxd.engines.worker.forms import ArrayOutline, ImageOutline, ImagesOutline

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    np = later("numpy")


@dataclass(frozen=True, eq=False)
class OutlinedImages(PromptImages):
    """Images of which only the outline is here. `held` is dropped by the worker when it is not needed any more."""

    held: Any = None


def outline_of(images: PromptImages) -> ImagesOutline:
    """The outline of what the worker holds."""
    parts = [
        ImageOutline(image.digest, image.tokens, {}, shared=True)
        if image.inputs is images.inputs
        else ImageOutline(image.digest, image.tokens, _outlines(image.inputs))
        for image in images.images
    ]
    return ImagesOutline(images.token, images.length, parts, _outlines(images.inputs))


def outlined(outline: ImagesOutline, held: Any) -> OutlinedImages:
    """What stands for the images in the daemon: arrays of the right shapes that take no memory."""
    inputs = _arrays(outline.inputs)
    images = [
        PreparedImage(image.digest, image.tokens, inputs if image.shared else _arrays(image.inputs))
        for image in outline.images
    ]
    return OutlinedImages(images, outline.token, outline.length, inputs, held)


def _outlines(arrays: Arrays) -> dict[str, ArrayOutline]:
    return {name: ArrayOutline(array.dtype.str, array.shape) for name, array in arrays.items()}


def _arrays(outlines: Mapping[str, ArrayOutline]) -> Arrays:
    return {name: _array(outline) for name, outline in outlines.items()}


def _array(outline: ArrayOutline) -> npt.NDArray[Any]:
    return np.broadcast_to(np.zeros((), np.dtype(outline.dtype)), outline.shape)
