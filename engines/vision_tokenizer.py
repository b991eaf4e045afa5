"""The tokenizer of a vision model: chats may hold images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

from mlxd.engines.errors import InvalidRequest
from mlxd.engines.image_files import decode_image, grey_picture
from mlxd.engines.prompt_images import EncodedPrompt, ImageInput, PreparedImage
from mlxd.engines.tokenizer import Messages, Tokenizer, Tools


class ImageProcessor(Protocol):
    """What makes arrays of images; see VisionProcessor."""

    @property
    def most_images(self) -> int | None: ...

    def message(self, message: Mapping[str, Any]) -> dict[str, Any]: ...

    def encode(self, text: str, pictures: Sequence[Any], alone: str) -> EncodedPrompt: ...


class VisionTokenizer(Tokenizer):
    """As Tokenizer, with the model's processor for images. `wrapper` is mlx-lm's TokenizerWrapper."""

    def __init__(self, wrapper: Any, processor: ImageProcessor) -> None:
        super().__init__(wrapper)
        self._processor = processor

    @property
    def takes_images(self) -> bool:
        return True

    def encode_prompt(
        self, messages: Messages, template: Mapping[str, Any] | None = None, tools: Tools | None = None
    ) -> EncodedPrompt:
        images = [part["image"] for message in messages for part in _parts(message) if part["type"] == "image"]
        if not images:
            return super().encode_prompt(messages, template, tools)
        self._check_count(images)
        text = self.render_chat(messages, template, tools)
        # equal files are decoded once, wherever they stand
        pictures = {image.data: decode_image(image) for image in reversed(images)}
        return self._processor.encode(text, [pictures[image.data] for image in images], self._alone)

    def trial_image(self, side: int) -> PreparedImage:
        """A grey image of so many pixels on a side, as the encoder takes it."""
        prompt = self._processor.encode(self._alone, [grey_picture(side)], self._alone)
        assert prompt.images is not None, "a processor keeps its images"
        return prompt.images.images[0]

    def _render(self, messages: Messages, variables: Mapping[str, Any]) -> str:
        return super()._render([self._processor.message(message) for message in messages], variables)

    @cached_property
    def _alone(self) -> str:
        """A chat of one image."""
        return self._render([{"role": "user", "content": [{"type": "image"}]}], {})

    def _check_count(self, images: Sequence[ImageInput]) -> None:
        most = self._processor.most_images
        if most is not None and len(images) > most:
            param = images[most].param
            raise InvalidRequest(f"{param}: this model takes {most} image in a chat; send fewer", param)


def _parts(message: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    content = message.get("content")
    return content if isinstance(content, list) else []
