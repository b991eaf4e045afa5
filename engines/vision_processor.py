"""mlx-vlm's processor of a model: from a rendered chat and pictures to token ids and the arrays of the encoder."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from mlx_vlm.prompt_utils import MODEL_CONFIG, SINGLE_IMAGE_ONLY_MODELS, get_message_json
from mlx_vlm.utils import prepare_inputs, should_add_special_tokens

from mlxd.engines.errors import InvalidRequest
from mlxd.engines.image_files import image_digest
from mlxd.engines.prompt_images import Arrays, EncodedPrompt, PreparedImage, PromptImages

IDS = "input_ids"
# Values of an array that positions may be told from; others are pixels, of which each image has its own.
_FEW = 4096


class VisionProcessor:
    """Used on any thread. `image_token` is the id that stands at each place of an image. `busy` is entered while arrays
    of MLX may be made. Without `batched` all images of a prompt are encoded together.
    """

    def __init__(
        self,
        processor: Any,
        model_type: str,
        image_token: int,
        busy: Callable[[], AbstractContextManager[None]],
        *,
        batched: bool,
    ) -> None:
        self._processor = processor
        self._model_type = model_type
        self._image_token = image_token
        self._busy = busy
        self._batched = batched
        # fast tokenizers keep the padding of a call in themselves
        self._lock = threading.Lock()

    @property
    def most_images(self) -> int | None:
        """How many images a prompt may have, None for any number."""
        return 1 if self._model_type in SINGLE_IMAGE_ONLY_MODELS else None

    def message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """A message in the form that this family's template reads."""
        content, role = message.get("content"), message["role"]
        if self._model_type not in MODEL_CONFIG or role == "tool" or message.get("tool_calls"):
            return dict(message)
        parts = content if isinstance(content, list) else []
        images = sum(part["type"] == "image" for part in parts)
        shown = get_message_json(
            self._model_type,
            [{"type": "image"} if part["type"] == "image" else part for part in parts] if images else content,
            role,
            skip_image_token=not images,
            skip_audio_token=True,
            num_images=images,
            num_audios=0,
        )
        return {**message, **shown} if isinstance(shown, dict) else {**message, "content": shown}

    def encode(self, text: str, pictures: Sequence[Any], alone: str) -> EncodedPrompt:
        """A rendered chat with its PIL images; `alone` is one with a single image and next to no text.

        Raises InvalidRequest when they do not belong together, or the processor refuses them.
        """
        joint = self._process(text, pictures)
        ids = joint[IDS].reshape(-1)
        held = int(np.count_nonzero(ids == self._image_token))
        images = self._images(pictures, joint, held, alone)
        if sum(image.tokens for image in images) != held or not held:
            message = "the text holds what stands for an image in this model's prompts; leave it out"
            raise InvalidRequest(message, "messages")
        inputs = {name: array for name, array in joint.items() if array.size <= _FEW} if self._batched else joint
        return EncodedPrompt(ids.tolist(), PromptImages(images, self._image_token, len(ids), inputs))

    def _images(self, pictures: Sequence[Any], joint: Arrays, held: int, alone: str) -> list[PreparedImage]:
        if len(pictures) == 1:
            return [PreparedImage(image_digest(pictures[0]), held, joint)]
        prepared: dict[bytes, PreparedImage] = {}
        digests = [image_digest(picture) for picture in pictures]
        for digest, picture in zip(digests, pictures, strict=True):
            if digest not in prepared:
                inputs = self._process(alone, [picture])
                tokens = int(np.count_nonzero(inputs[IDS] == self._image_token))
                prepared[digest] = PreparedImage(digest, tokens, inputs if self._batched else {})
        return [prepared[digest] for digest in digests]

    def _process(self, text: str, pictures: Sequence[Any]) -> Arrays:
        with self._lock, self._busy():
            try:
                made = prepare_inputs(
                    self._processor,
                    images=list(pictures),
                    prompts=text,
                    image_token_index=self._image_token,
                    add_special_tokens=should_add_special_tokens(self._model_type, self._processor),
                )
            # a processor is a program of the model's family: what it raises on odd images or markers is open
            except Exception as error:
                message = f"the model's image processor refused the images: {error or type(error).__name__}"
                raise InvalidRequest(message, "messages") from error
            return {name: _plain(value) for name, value in made.items() if isinstance(value, mx.array | np.ndarray)}


def _plain(value: Any) -> npt.NDArray[Any]:
    """A copy that belongs to no MLX thread."""
    if isinstance(value, mx.array) and value.dtype == mx.bfloat16:
        value = value.astype(mx.float32)
    return np.array(value)
