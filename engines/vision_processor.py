"""mlx-vlm's processor of a model: from a rendered chat and pictures to token ids and the arrays of the encoder."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_vlm.prompt_utils import MODEL_CONFIG, SINGLE_IMAGE_ONLY_MODELS, get_message_json
from mlx_vlm.utils import prepare_inputs, should_add_special_tokens

from mlxd.engines.errors import InvalidRequest
from mlxd.engines.image_files import image_digest
from mlxd.engines.load_watch import LoadWatch
from mlxd.engines.prompt_images import Arrays, EncodedPrompt, PreparedImage, PromptImages
from mlxd.engines.serial_vision_inputs import flat_inputs, plain

IDS = "input_ids"
# Arrays of shape [1, tokens of the prompt].
_ALIGNED = frozenset({IDS, "attention_mask", "mm_token_type_ids", "token_type_ids"})
_MARKER = "<image>"
# Values of an array that positions may be told from; others are pixels, of which each image has its own.
_FEW = 4096


class VisionProcessor:
    """Used on any thread. `image_token` is the id that stands at each place of an image. Without `batched` all images
    of a prompt are encoded together. `other_media` are ids that stand for what is no image.
    """

    def __init__(
        self,
        processor: Any,
        model_type: str,
        image_token: int,
        watch: LoadWatch,
        *,
        batched: bool,
        other_media: Sequence[int] = (),
    ) -> None:
        self._processor = processor
        self._model_type = model_type
        self._image_token = image_token
        self._watch = watch
        self._batched = batched
        self.other_media = other_media
        # fast tokenizers keep the padding of a call in themselves
        self._lock = threading.Lock()

    @property
    def most_images(self) -> int | None:
        """How many images a prompt may have, None for any number."""
        return 1 if self._model_type in SINGLE_IMAGE_ONLY_MODELS else None

    def flat(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """A message for a template that reads text alone: what stands for an image is in it."""
        content = message.get("content")
        if not isinstance(content, list):
            return dict(message)
        marker = getattr(self._processor, "image_token", None)
        marker = marker if isinstance(marker, str) and marker else _MARKER
        texts = [f"{marker}\n" if part["type"] == "image" else part["text"] for part in content]
        return {**message, "content": "".join(texts)}

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
        if self._batched:
            images = self._images(pictures, joint, held, alone)
            belong = sum(image.tokens for image in images) == held
        else:
            images = _shares(pictures, joint, held)
            belong = self._marks(text) == len(pictures) * self._marks(alone)
        if not all(image.tokens for image in images):
            raise InvalidRequest("an image is too narrow for this model to have a token; send a wider one", "messages")
        if not belong:
            message = "the text holds what stands for an image in this model's prompts; leave it out"
            raise InvalidRequest(message, "messages")
        inputs = {name: array for name, array in joint.items() if array.size <= _FEW} if self._batched else joint
        return EncodedPrompt(ids.tolist(), PromptImages(images, self._image_token, len(ids), inputs))

    def _images(self, pictures: Sequence[Any], joint: Arrays, held: int, alone: str) -> list[PreparedImage]:
        if len(pictures) == 1:
            return [PreparedImage(image_digest(pictures[0]), held, self._around(joint))]
        prepared: dict[bytes, PreparedImage] = {}
        digests = [image_digest(picture) for picture in pictures]
        for digest, picture in zip(digests, pictures, strict=True):
            if digest not in prepared:
                inputs = self._process(alone, [picture])
                tokens = int(np.count_nonzero(inputs[IDS] == self._image_token))
                prepared[digest] = PreparedImage(digest, tokens, inputs)
        return [prepared[digest] for digest in digests]

    def _around(self, joint: Arrays) -> Arrays:
        """The inputs of one image with no more of its prompt than the tokens beside its places."""
        ids = joint[IDS].reshape(-1)
        places = np.flatnonzero(ids == self._image_token)
        if not len(places):
            return joint
        part = slice(max(0, int(places[0]) - 1), int(places[-1]) + 2)
        return {name: array[:, part] if name in _ALIGNED else array for name, array in joint.items()}

    def _marks(self, text: str) -> int:
        """How often a text holds what stands for an image."""
        tokenizer = getattr(self._processor, "tokenizer", self._processor)
        with self._lock:
            return list(tokenizer.encode(text, add_special_tokens=False)).count(self._image_token)

    def _process(self, text: str, pictures: Sequence[Any]) -> Arrays:
        with self._lock:
            return self._watch.images.run(lambda: self._arrays(text, pictures))

    def _arrays(self, text: str, pictures: Sequence[Any]) -> Arrays:
        """What the processor makes, in arrays that belong to no thread; some compute it with MLX."""
        with self._watch.crowd.entered():
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
            if not self._batched:
                return flat_inputs(made)
            return {name: plain(value) for name, value in made.items() if isinstance(value, mx.array | np.ndarray)}


def _shares(pictures: Sequence[Any], joint: Arrays, held: int) -> list[PreparedImage]:
    """Images that are only encoded together: each has the inputs of all, and its share of the image tokens."""
    share, rest = divmod(held, len(pictures))
    return [
        PreparedImage(image_digest(picture), share + (index < rest), joint) for index, picture in enumerate(pictures)
    ]
