"""Chat messages as Ollama clients send them, and as chat templates read them."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from mlxd.daemon.api.refusals import InvalidField
from mlxd.daemon.api.sent_images import Content, SentImage, content_of

MAX_MESSAGES = 100_000
ANY_NAME = ""


class CalledFunction(Struct, frozen=True):
    """What was called."""

    name: Annotated[str, Meta(min_length=1)]
    arguments: dict[str, Any] | None = None


class ToolCall(Struct, frozen=True):
    """One entry of an assistant's `tool_calls`."""

    function: CalledFunction
    id: str | None = None


class Message(Struct, frozen=True, kw_only=True):
    """One message; `tool_name` and `tool_call_id` say which call a tool's message answers."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: list[ToolCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


Messages = Annotated[list[Message], Meta(max_length=MAX_MESSAGES)]


def template_messages(messages: Sequence[Message]) -> tuple[dict[str, Any], ...]:
    """Messages for a chat template. Raises InvalidField."""
    calls = _Calls()
    return tuple(_plain(message, f"messages[{index}]", calls) for index, message in enumerate(messages))


def with_text(images: Sequence[str] | None, place: str, text: str) -> Content:
    """The content of a message with these images, in base64, which come before its text as they do in Ollama."""
    sent = [SentImage(f"{place}[{index}]", image, is_url=False) for index, image in enumerate(images or ())]
    return content_of([*sent, text] if text else sent)


@dataclass(slots=True)
class _Calls:
    """Ids for calls that came without: some templates read one. Answers that name no id answer in order.

    `open` are the ids of calls without an answer; `by_name` has all ids in order, by function and under ANY_NAME.
    """

    made: int = 0
    open: set[str] = field(default_factory=set)
    by_name: defaultdict[str, deque[str]] = field(default_factory=lambda: defaultdict(deque))

    def give(self, call: ToolCall) -> str:
        self.made += 1
        # nine letters and digits, as Mistral's templates want them
        given = call.id or f"call{self.made:05d}"
        self.open.add(given)
        for name in (call.function.name, ANY_NAME):
            self.by_name[name].append(given)
        return given

    def answered(self, message: Message) -> str | None:
        """The id of the call that a tool's message answers, None when there is no such call."""
        given = message.tool_call_id or self._first(message.tool_name or ANY_NAME)
        self.open.discard(given or "")
        return given

    def _first(self, name: str) -> str | None:
        waiting = self.by_name[name]
        while waiting:
            given = waiting.popleft()
            if given in self.open:
                return given
        return None


def _plain(message: Message, place: str, calls: _Calls) -> dict[str, Any]:
    where = f"{place}.images"
    if message.images and message.role not in ("user", "tool"):
        raise InvalidField(f"{where}: images are for messages of the role user or tool, not of {message.role}", where)
    extras = dict(_extras(message, place, calls))
    return {"role": message.role, "content": with_text(message.images, where, message.content or ""), **extras}


def _extras(message: Message, place: str, calls: _Calls) -> Iterator[tuple[str, Any]]:
    if message.role != "assistant" and message.tool_calls:
        where = f"{place}.tool_calls"
        raise InvalidField(f"{where}: only an assistant's message has them", where)
    if message.role != "assistant" and message.thinking:
        where = f"{place}.thinking"
        raise InvalidField(f"{where}: only an assistant's message has it", where)
    if message.thinking:
        yield "reasoning_content", message.thinking
    if message.tool_calls:
        yield "tool_calls", [_call(call, calls.give(call)) for call in message.tool_calls]
    if message.role != "tool":
        return
    if message.tool_name:
        yield "name", message.tool_name
    if (answered := calls.answered(message)) is not None:
        yield "tool_call_id", answered


def _call(call: ToolCall, given: str) -> dict[str, Any]:
    return {
        "id": given,
        "type": "function",
        "function": {"name": call.function.name, "arguments": call.function.arguments or {}},
    }
