"""Chat messages as OpenAI clients send them, and as chat templates read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from mlxd.daemon.api.refusals import InvalidField, UnsupportedCapability
from mlxd.daemon.api.sent_images import Content, SentImage, content_of
from mlxd.daemon.api.tool_use import call_arguments

MAX_MESSAGES = 100_000


class TextPart(Struct, frozen=True, tag_field="type", tag="text"):
    """A piece of text."""

    text: str


class RefusalPart(Struct, frozen=True, tag_field="type", tag="refusal"):
    """What an assistant answered instead of text; it is text for the model."""

    refusal: str


class ImageUrl(Struct, frozen=True):
    """Where an image is, or a data URL that holds it. `detail` has no effect: models see what their files say."""

    url: str
    detail: Literal["auto", "low", "high", "original"] | None = None


class ImagePart(Struct, frozen=True, tag_field="type", tag="image_url"):
    """An image, by URL or inline."""

    image_url: ImageUrl


class AudioPart(Struct, frozen=True, tag_field="type", tag="input_audio"):
    """A sound."""

    input_audio: Any = None


class FilePart(Struct, frozen=True, tag_field="type", tag="file"):
    """A document."""

    file: Any = None


Part = TextPart | RefusalPart | ImagePart | AudioPart | FilePart
Parts = str | Annotated[list[Part], Meta(min_length=1)]


class FunctionCall(Struct, frozen=True):
    """A call that the assistant made; `arguments` is JSON text."""

    name: str
    arguments: str = "{}"


class ToolCall(Struct, frozen=True):
    """One entry of an assistant's `tool_calls`."""

    function: FunctionCall
    id: str = ""
    type: str = "function"


class SystemMessage(Struct, frozen=True, tag_field="role", tag="system"):
    """Instructions."""

    content: Parts
    name: str | None = None


class DeveloperMessage(Struct, frozen=True, tag_field="role", tag="developer"):
    """Instructions, by their newer name; templates know them as "system"."""

    content: Parts
    name: str | None = None


class UserMessage(Struct, frozen=True, tag_field="role", tag="user"):
    """What a person says."""

    content: Parts
    name: str | None = None


class AssistantMessage(Struct, frozen=True, tag_field="role", tag="assistant"):
    """An earlier answer; without content it has made calls."""

    content: Parts | None = None
    name: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: Any = None
    audio: Any = None


class ToolMessage(Struct, frozen=True, tag_field="role", tag="tool"):
    """What a tool answered."""

    content: Parts
    tool_call_id: str | None = None
    name: str | None = None


Message = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage
Messages = Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)]


def template_messages(messages: Sequence[Message]) -> tuple[dict[str, Any], ...]:
    """Messages for a chat template. Raises UnsupportedCapability and InvalidField."""
    return tuple(_plain(message, f"messages[{index}]") for index, message in enumerate(messages))


def has_detail(messages: Sequence[Message]) -> bool:
    """Whether any image says in what detail it is to be seen."""
    parts = (part for message in messages if isinstance(message.content, list) for part in message.content)
    return any(isinstance(part, ImagePart) and part.image_url.detail is not None for part in parts)


def _plain(message: Message, place: str) -> dict[str, Any]:
    role = "system" if isinstance(message, DeveloperMessage) else str(message.__struct_config__.tag)
    plain: dict[str, Any] = {"role": role, "content": _content(message, f"{place}.content")}
    if message.name is not None:
        plain["name"] = message.name
    if isinstance(message, ToolMessage) and message.tool_call_id is not None:
        plain["tool_call_id"] = message.tool_call_id
    if isinstance(message, AssistantMessage):
        plain |= _assistant_extras(message, place)
    return plain


def _content(message: Message, place: str) -> Content:
    content = message.content
    if content is None or isinstance(content, str):
        return content or ""
    return content_of(_piece(part, message, f"{place}[{index}]") for index, part in enumerate(content))


def _piece(part: Part, message: Message, place: str) -> str | SentImage:
    match part:
        case TextPart(text) | RefusalPart(text):
            return text
        case ImagePart(image):
            if not isinstance(message, UserMessage):
                role = message.__struct_config__.tag
                raise InvalidField(f"{place}: images are for messages of the role user, not of {role}", place)
            return SentImage(place, image.url)
        case _:
            kind = part.__struct_config__.tag
            raise UnsupportedCapability(f"{place}: models take text and images only, not parts of type {kind}", place)


def _assistant_extras(message: AssistantMessage, place: str) -> dict[str, Any]:
    for field, value in (("function_call", message.function_call), ("audio", message.audio)):
        if value is not None:
            raise InvalidField(f"{place}.{field} is not supported; leave it out", f"{place}.{field}")
    if message.content is None and message.refusal is None and not message.tool_calls:
        where = f"{place}.content"
        raise InvalidField(f"{where}: an assistant message needs content or tool_calls", where)
    extras: dict[str, Any] = {}
    if message.content is None and message.refusal is not None:
        extras["content"] = message.refusal
    if message.reasoning_content is not None:
        extras["reasoning_content"] = message.reasoning_content
    if message.tool_calls:
        where = f"{place}.tool_calls"
        extras["tool_calls"] = [_call(call, f"{where}[{index}]") for index, call in enumerate(message.tool_calls)]
    return extras


def _call(call: ToolCall, place: str) -> dict[str, Any]:
    arguments = call_arguments(call.function.arguments, f"{place}.function.arguments")
    return {"id": call.id, "type": call.type, "function": {"name": call.function.name, "arguments": arguments}}
