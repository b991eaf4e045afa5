"""Images in the messages of a chat, from what a client sent to what a tokenizer reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from mlxd.engines.prompt_images import ImageInput

Message = Mapping[str, Any]
Content = str | list[dict[str, Any]]

_INLINE = "data:"


@dataclass(slots=True)
class SentImage:
    """An image as a client sent it, at `param` of the request: a URL, or base64 of a file of this media type if the
    client names one. In messages it stands where its ImageInput will.
    """

    param: str
    sent: str = field(repr=False)
    is_url: bool = True
    media_type: str | None = None

    @property
    def is_remote(self) -> bool:
        """Whether it has to be fetched."""
        return self.is_url and self.sent[: len(_INLINE)].lower() != _INLINE

    def take(self) -> str:
        """What was sent, which is let go here: many a caller holds a request until its answer ends."""
        sent, self.sent = self.sent, ""
        return sent


def content_of(pieces: Iterable[str | SentImage]) -> Content:
    """The content of a message from its texts and images: texts in a row are joined by line ends, and a content
    without images is text alone.
    """
    parts: list[dict[str, Any]] = []
    for is_text, run in groupby(pieces, key=lambda piece: isinstance(piece, str)):
        if is_text:
            parts.append({"type": "text", "text": "\n".join(map(str, run))})
        else:
            parts += ({"type": "image", "image": image} for image in run)
    if all(part["type"] == "text" for part in parts):
        return parts[0]["text"] if parts else ""
    return parts


def images_in(messages: Iterable[Message]) -> tuple[SentImage, ...]:
    """The images of a chat, in order."""
    return tuple(part["image"] for message in messages for part in _parts(message) if part["type"] == "image")


def with_images(messages: Iterable[Message], images: Sequence[ImageInput]) -> list[Message]:
    """The messages with the images that were made of those that were sent, one for each."""
    rest = iter(images)
    return [_changed(message, lambda: {"image": next(rest)}) for message in messages]


def without_images(messages: Iterable[Message]) -> list[Message]:
    """The messages with the places of their images alone."""
    return [_changed(message, dict) for message in messages]


def _changed(message: Message, image: Callable[[], dict[str, Any]]) -> Message:
    parts = _parts(message)
    if not parts:
        return message
    changed = [{"type": "image", **image()} if part["type"] == "image" else part for part in parts]
    return {**message, "content": changed}


def _parts(message: Message) -> Sequence[dict[str, Any]]:
    content = message.get("content")
    return content if isinstance(content, list) else ()
