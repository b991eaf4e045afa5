"""Images on their way into a prompt. Nothing here imports MLX or an image library."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeAlias

from mlxd.engines.imported_later import later
from mlxd.engines.token_arrays import Tokens

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    np = later("numpy")

Arrays: TypeAlias = "Mapping[str, npt.NDArray[Any]]"


@dataclass(frozen=True, slots=True)
class ImageInput:
    """An image as it came: the bytes of a file; all of a prompt may have at most `max_pixels`. `param` is its place in
    the request. In messages it stands as `{"type": "image", "image": ImageInput}` in a content list.
    """

    data: bytes = field(repr=False)
    param: str
    max_pixels: int


@dataclass(frozen=True, slots=True, eq=False)
class PreparedImage:
    """One image for the encoder. `digest` is that of its pixels, `tokens` its places in the prompt, and `inputs` what
    the model's processor made of it alone, with the `input_ids` of a short prompt around it, shape [1, length].
    """

    digest: bytes
    tokens: int
    inputs: Arrays

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.inputs.values())


@dataclass(frozen=True, eq=False)
class PromptImages:
    """The images of one prompt of `length` tokens, in order; one may be there twice. `token` is the id that stands at
    each of their places, `inputs` what the processor made of all of them with the prompt: positions come from it, and
    what a model without batches needs.
    """

    images: Sequence[PreparedImage]
    token: int
    length: int
    inputs: Arrays

    @property
    def nbytes(self) -> int:
        """Bytes that the processor's arrays take."""
        own = sum(array.nbytes for array in self.inputs.values())
        return own + sum(image.nbytes for image in self.images if image.inputs is not self.inputs)

    def places(self, prompt: Tokens) -> npt.NDArray[np.int64]:
        """Where images stand in a prompt, or in the beginning of one; ascending."""
        return np.flatnonzero(prompt == self.token)[: self.tokens]

    @cached_property
    def tokens(self) -> int:
        """How many tokens of the prompt are images'."""
        return sum(image.tokens for image in self.images)

    @staticmethod
    def tokens_in(keyed: Tokens) -> int:
        """How many image tokens there are in what `keyed` gave, or in the beginning of it."""
        return int(np.count_nonzero(keyed < 0))

    def tail(self, tokens: int) -> Sequence[PreparedImage]:
        """The images that have a place behind the first so many image tokens, in order."""
        ends = accumulate(image.tokens for image in self.images)
        return [image for image, end in zip(self.images, ends, strict=True) if end > tokens]

    @cached_property
    def keys(self) -> Tokens:
        """What stands for each image token where prompts are compared: negative, and the image's own."""
        return np.concatenate([image_keys(image.digest, image.tokens) for image in self.images])

    def keyed(self, prompt: Tokens) -> Tokens:
        """A prompt, or the beginning of one, with each image token replaced by its key."""
        keyed = prompt.copy()
        places = self.places(prompt)
        keyed[places] = self.keys[: len(places)]
        return keyed


def image_keys(digest: bytes, tokens: int) -> Tokens:
    """Negative numbers for the places of one image: the last bit is 1 for all but the first of them, 30 others are
    drawn from the digest, so that different images have different ones.
    """
    drawn = np.frombuffer(hashlib.shake_256(digest).digest(4 * tokens), dtype=np.int32) | np.int32(-(2**31))
    keys = drawn | np.int32(1)
    keys[:1] &= np.int32(-2)
    return keys


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """The token ids of a prompt, with its images if it has any."""

    tokens: Sequence[int]
    images: PromptImages | None = None
