"""From the items of a conversation to messages that chat templates read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlxd.daemon.api.refusals import InvalidField, UnsupportedCapability
from mlxd.daemon.api.responses.items import (
    CallItem,
    ImagePart,
    InputTextPart,
    Item,
    MessageItem,
    OutputTextPart,
    Part,
    Parts,
    ReasoningItem,
    RefusalPart,
    ResultItem,
)
from mlxd.daemon.api.sent_images import Content, SentImage, content_of
from mlxd.daemon.api.tool_use import call_arguments

Messages = list[dict[str, Any]]


class Conversation:
    """Messages in OpenAI's form, made of items one after the other.

    1. Instructions are a system message; system and developer messages that follow it directly are part of it, as
       many templates take one alone.
    2. Reasoning, then text, then calls are one message of the assistant, as templates write them. What it says after
       a call joins them, so that the results follow the message with the calls.
    """

    def __init__(self, instructions: str | None = None) -> None:
        self.messages: Messages = []
        self._called: set[str] = set()
        self._in_instructions = bool(instructions)
        if instructions:
            self.messages.append({"role": "system", "content": instructions})

    def add(self, item: Item, place: str) -> None:
        """The next item; `place` is where it stands in the request. Raises InvalidField and UnsupportedCapability."""
        match item:
            case MessageItem(role="assistant"):
                self._say(content_text(item.content, f"{place}.content"))
            case MessageItem(role="user"):
                self.messages.append({"role": "user", "content": _content(item.content, f"{place}.content")})
            case MessageItem():
                self._instruct(content_text(item.content, f"{place}.content"))
            case CallItem():
                self._call(item, place)
            case ResultItem():
                self._take(item, place)
            case ReasoningItem():
                self._reason(item, place)
        self._in_instructions = self._in_instructions and len(self.messages) == 1

    def _instruct(self, text: str) -> None:
        if self._in_instructions:
            self.messages[0]["content"] += f"\n\n{text}"
            return
        self.messages.append({"role": "system", "content": text})

    def _say(self, text: str) -> None:
        self._open_message()
        self.messages[-1]["content"] += text

    def _reason(self, item: ReasoningItem, place: str) -> None:
        if item.encrypted_content:
            where = f"{place}.encrypted_content"
            raise InvalidField(f"{where}: it cannot be read here; leave the item out", where)
        text = "\n".join(part.text for part in item.content or ())
        if not text:
            return
        self._open_message()
        earlier = self.messages[-1].get("reasoning_content")
        self.messages[-1]["reasoning_content"] = f"{earlier}\n{text}" if earlier else text

    def _call(self, item: CallItem, place: str) -> None:
        if not self._goes_on():
            self._begin()
        function = {"name": item.name, "arguments": call_arguments(item.arguments, f"{place}.arguments")}
        call = {"id": item.call_id, "type": "function", "function": function}
        self.messages[-1].setdefault("tool_calls", []).append(call)
        self._called.add(item.call_id)

    def _take(self, item: ResultItem, place: str) -> None:
        if item.call_id not in self._called:
            where = f"{place}.call_id"
            raise InvalidField(f"{where}: no function_call before it has this call_id", where)
        output = _content(item.output, f"{place}.output")
        self.messages.append({"role": "tool", "content": output, "tool_call_id": item.call_id})

    def _open_message(self) -> None:
        """Go on with a message that has no text yet, or calls without results; else begin one."""
        if not self._goes_on() or ("tool_calls" not in self.messages[-1] and self.messages[-1]["content"]):
            self._begin()

    def _goes_on(self) -> bool:
        return bool(self.messages) and self.messages[-1]["role"] == "assistant"

    def _begin(self) -> None:
        self.messages.append({"role": "assistant", "content": ""})


def content_text(content: Parts, place: str) -> str:
    """The text of a content that is all text. Raises InvalidField for images, UnsupportedCapability for the rest."""
    if isinstance(content, str):
        return content
    return "\n".join(part_text(part, f"{place}[{index}]") for index, part in enumerate(content))


def part_text(part: Part, place: str) -> str:
    """The text of a part. Raises InvalidField for an image, UnsupportedCapability for what is neither."""
    match part:
        case InputTextPart(text) | OutputTextPart(text) | RefusalPart(text):
            return text
        case ImagePart():
            raise InvalidField(f"{place}: images are for messages of the role user and outputs of functions", place)
        case _:
            kind = part.__struct_config__.tag
            raise UnsupportedCapability(f"{place}: models take text and images only, not parts of type {kind}", place)


def _content(content: Parts, place: str) -> Content:
    if isinstance(content, str):
        return content
    return content_of(_piece(part, f"{place}[{index}]") for index, part in enumerate(content))


def _piece(part: Part, place: str) -> str | SentImage:
    return _image(part, place) if isinstance(part, ImagePart) else part_text(part, place)


def _image(part: ImagePart, place: str) -> SentImage:
    if part.file_id is not None:
        where = f"{place}.file_id"
        raise InvalidField(f"{where}: no files are kept here; send the image in image_url, as a data URL", where)
    if part.image_url is None:
        where = f"{place}.image_url"
        raise InvalidField(f"{where}: it is required, as a data URL or as the URL of an image", where)
    return SentImage(place, part.image_url)


def template_messages(instructions: str | None, earlier: Sequence[Item], own: Sequence[Item]) -> Messages:
    """All messages; only `own` items can be at fault. Raises InvalidField and UnsupportedCapability."""
    conversation = Conversation(instructions)
    for item in earlier:
        conversation.add(item, "previous_response_id")
    for index, item in enumerate(own):
        conversation.add(item, f"input[{index}]")
    return conversation.messages
