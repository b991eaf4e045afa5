"""The tokenizer of a vision model: chats may hold images."""

from __future__ import annotations

import re
import traceback
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

from mlxd.engines.errors import InvalidRequest
from mlxd.engines.image_files import decode_images, grey_picture
from mlxd.engines.prompt_images import EncodedPrompt, ImageInput, PreparedImage, PromptImages
from mlxd.engines.tokenizer import Messages, Tokenizer, Tools

# Processors write such for an image while they count its tokens, in texts too.
_PLACEHOLDER = re.compile(r"<\|?\w*placeholder\|?>")
# Pixels on a side of an image that every processor takes.
_TRIAL_SIDE = 64


class ImageProcessor(Protocol):
    """What makes arrays of images; see VisionProcessor."""

    @property
    def most_images(self) -> int | None: ...

    @property
    def other_media(self) -> Sequence[int]: ...

    def message(self, message: Mapping[str, Any]) -> dict[str, Any]: ...

    def flat(self, message: Mapping[str, Any]) -> dict[str, Any]: ...

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
        images = [part["image"] for message in messages for part in _images(message)]
        if not images:
            return super().encode_prompt(messages, template, tools)
        self._check_count(images)
        text = self.render_chat(messages, template, tools)
        self._check_places(messages, text)
        self._check_markers(text, len(images))
        try:
            return self._processor.encode(text, decode_images(images), self._alone)
        except Exception as error:
            _empty_frames(error)
            raise

    def trial_image(self, side: int) -> PreparedImage:
        """A grey image of so many pixels on a side, as the encoder takes it."""
        return self._trial(side).images[0]

    def _trial(self, side: int) -> PromptImages:
        prompt = self._processor.encode(self._alone, [grey_picture(side)], self._alone)
        assert prompt.images is not None, "a processor keeps its images"
        return prompt.images

    def _render(self, messages: Messages, variables: Mapping[str, Any]) -> str:
        form = self._processor.message if self._reads_parts else self._processor.flat
        return super()._render([form(message) for message in messages], variables)

    @cached_property
    def _reads_parts(self) -> bool:
        """Whether the template takes contents that are lists: others raise, or write them as Python does."""
        message = self._processor.message({"role": "user", "content": [{"type": "image"}]})
        try:
            return "'type'" not in super()._render([message], {})
        except InvalidRequest:
            return False

    @cached_property
    def _alone(self) -> str:
        """A chat of one image."""
        return self._render([{"role": "user", "content": [{"type": "image"}]}], {})

    @cached_property
    def _written(self) -> str:
        """What the template writes for an image, "" if that cannot be told."""
        text = {"type": "text", "text": "text_beside_an_image"}
        with_image, without = (
            self._render([{"role": "user", "content": content}], {}).partition(text["text"])[0]
            for content in ([{"type": "image"}, text], [text])
        )
        return with_image[_common_length(with_image, without) :].strip()

    @cached_property
    def _markers(self) -> Sequence[str]:
        """What stands for an image in a rendered chat, and for each of its tokens in a prompt."""
        token = self.token_bytes(self._trial(_TRIAL_SIDE).token).decode(errors="replace")
        return [marker for marker in (self._written, token) if marker]

    @cached_property
    def _other_media(self) -> Sequence[str]:
        """What stands for media that are not taken: positions in a prompt with images are told by it, too."""
        texts = [self.token_bytes(token).decode(errors="replace") for token in self._processor.other_media]
        return [text for text in texts if text]

    def _check_places(self, messages: Messages, text: str) -> None:
        """Some templates write images of the user only."""
        elsewhere = [
            (message["role"], part) for message in messages if message["role"] != "user" for part in _images(message)
        ]
        if not elsewhere or text.count(self._written) >= sum(len(_images(message)) for message in messages):
            return
        role, part = elsewhere[0]
        param = part["image"].param
        message = f"{param}: this model reads no image in a message of role {role}; put it into a user's message"
        raise InvalidRequest(message, param)

    def _check_markers(self, text: str, images: int) -> None:
        """A text may not hold what stands for an image: others of the request would take its place."""
        typed = [marker for marker in self._markers if text.count(marker) > images * self._alone.count(marker)]
        typed += _PLACEHOLDER.findall(text)
        media = [marker for marker in self._other_media if text.count(marker) > images * self._alone.count(marker)]
        if typed or media:
            marker, what = (typed[0], "an image") if typed else (media[0], "a video or a sound")
            message = f"the text holds {marker}, which stands for {what} in this model's prompts; leave it out"
            raise InvalidRequest(message, "messages")

    def _check_count(self, images: Sequence[ImageInput]) -> None:
        most = self._processor.most_images
        if most is not None and len(images) > most:
            param = images[most].param
            raise InvalidRequest(f"{param}: this model takes {most} image in a chat; send fewer", param)


def _empty_frames(error: BaseException | None) -> None:
    """Let go of what an error, and what it came of, passed on its way: pictures, which may be large."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _images(message: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The parts of a message that are images."""
    content = message.get("content")
    return [part for part in content if part["type"] == "image"] if isinstance(content, list) else []


def _common_length(first: str, second: str) -> int:
    """How many characters two texts share from their start."""
    differs = (index for index, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
    return next(differs, min(len(first), len(second)))
