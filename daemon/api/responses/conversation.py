"""From the items of a conversation to messages that chat templates read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlxd.daemon.api.refusals import InvalidField, UnsupportedCapability
from mlxd.daemon.api.responses.items import (
    CallItem,
    Content,
    InputTextPart,
    Item,
    MessageItem,
    OutputTextPart,
    Part,
    ReasoningItem,
    RefusalPart,
    ResultItem,
)
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
            case MessageItem():
                self._hear(item.role, content_text(item.content, f"{place}.content"))
            case CallItem():
                self._call(item, place)
            case ResultItem():
                self._take(item, place)
            case ReasoningItem():
                self._reason(item, place)
        self._in_instructions = self._in_instructions and len(self.messages) == 1

    def _hear(self, role: str, text: str) -> None:
        role = "system" if role == "developer" else role
        if self._in_instructions and role == "system":
            self.messages[0]["content"] += f"\n\n{text}"
            return
        self.messages.append({"role": role, "content": text})

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
        text = content_text(item.output, f"{place}.output")
        self.messages.append({"role": "tool", "content": text, "tool_call_id": item.call_id})

    def _open_message(self) -> None:
        """Go on with a message that has no text yet, or calls without results; else begin one."""
        if not self._goes_on() or ("tool_calls" not in self.messages[-1] and self.messages[-1]["content"]):
            self._begin()

    def _goes_on(self) -> bool:
        return bool(self.messages) and self.messages[-1]["role"] == "assistant"

    def _begin(self) -> None:
        self.messages.append({"role": "assistant", "content": ""})


def content_text(content: Content, place: str) -> str:
    """The text of a content. Raises UnsupportedCapability for what is none."""
    if isinstance(content, str):
        return content
    return "\n".join(part_text(part, f"{place}[{index}]") for index, part in enumerate(content))


def part_text(part: Part, place: str) -> str:
    """The text of a part. Raises UnsupportedCapability for what is none."""
    match part:
        case InputTextPart(text) | OutputTextPart(text) | RefusalPart(text):
            return text
        case _:
            kind = part.__struct_config__.tag
            raise UnsupportedCapability(f"{place}: this model takes text only, not parts of type {kind}", place)


def template_messages(instructions: str | None, earlier: Sequence[Item], own: Sequence[Item]) -> Messages:
    """All messages; only `own` items can be at fault. Raises InvalidField and UnsupportedCapability."""
    conversation = Conversation(instructions)
    for item in earlier:
        conversation.add(item, "previous_response_id")
    for index, item in enumerate(own):
        conversation.add(item, f"input[{index}]")
    return conversation.messages
