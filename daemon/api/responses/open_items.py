"""Items of an output that grow: what their opening, each piece and their end are as events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mlxd.daemon.api.openai.objects import TokenEntry
from mlxd.daemon.api.responses.events import (
    AnyEvent,
    ArgumentsDelta,
    ArgumentsDone,
    ItemAdded,
    ItemDone,
    PartAdded,
    PartDone,
    ReasoningDelta,
    ReasoningDone,
    TextDelta,
    TextDone,
)
from mlxd.daemon.api.responses.items import ItemStatus
from mlxd.daemon.api.responses.objects import FunctionCall, Message, OutputText, Reasoning, ReasoningText

Numbers = Iterator[int]


class OpenMessage:
    """A message that is being written."""

    def __init__(self, item_id: str, index: int, numbers: Numbers) -> None:
        self._id = item_id
        self._index = index
        self._numbers = numbers
        self._text: list[str] = []
        self._logprobs: list[TokenEntry] = []

    def opening(self) -> list[AnyEvent]:
        """The item and its only part begin."""
        empty = Message(self._id, (), "in_progress")
        return [
            ItemAdded(next(self._numbers), self._index, empty),
            PartAdded(next(self._numbers), self._id, self._index, 0, OutputText("")),
        ]

    def more(self, text: str, logprobs: Sequence[TokenEntry]) -> AnyEvent:
        """More text, or log-probabilities of tokens without any."""
        self._text.append(text)
        self._logprobs += logprobs
        return TextDelta(next(self._numbers), self._id, self._index, 0, text, logprobs)

    def item(self, status: ItemStatus) -> Message:
        """The message so far."""
        return Message(self._id, (self._part(),), status)

    def closing(self, status: ItemStatus) -> list[AnyEvent]:
        """The part and the item end."""
        part = self._part()
        return [
            TextDone(next(self._numbers), self._id, self._index, 0, part.text, part.logprobs),
            PartDone(next(self._numbers), self._id, self._index, 0, part),
            ItemDone(next(self._numbers), self._index, self.item(status)),
        ]

    def _part(self) -> OutputText:
        return OutputText("".join(self._text), logprobs=tuple(self._logprobs))


class OpenReasoning:
    """Reasoning that goes on."""

    def __init__(self, item_id: str, index: int, numbers: Numbers) -> None:
        self._id = item_id
        self._index = index
        self._numbers = numbers
        self._text: list[str] = []

    def opening(self) -> list[AnyEvent]:
        """The item and its only part begin."""
        empty = Reasoning(self._id, (), "in_progress")
        return [
            ItemAdded(next(self._numbers), self._index, empty),
            PartAdded(next(self._numbers), self._id, self._index, 0, ReasoningText("")),
        ]

    def more(self, text: str) -> AnyEvent:
        """More of it."""
        self._text.append(text)
        return ReasoningDelta(next(self._numbers), self._id, self._index, 0, text)

    def item(self, status: ItemStatus) -> Reasoning:
        """The reasoning so far."""
        return Reasoning(self._id, (self._part(),), status)

    def closing(self, status: ItemStatus) -> list[AnyEvent]:
        """The part and the item end."""
        part = self._part()
        return [
            ReasoningDone(next(self._numbers), self._id, self._index, 0, part.text),
            PartDone(next(self._numbers), self._id, self._index, 0, part),
            ItemDone(next(self._numbers), self._index, self.item(status)),
        ]

    def _part(self) -> ReasoningText:
        return ReasoningText("".join(self._text))


def call_events(call: FunctionCall, index: int, numbers: Numbers) -> list[AnyEvent]:
    """A call, which comes whole."""
    begun = FunctionCall(call.id, call.call_id, call.name, "", "in_progress")
    return [
        ItemAdded(next(numbers), index, begun),
        ArgumentsDelta(next(numbers), call.id, index, call.arguments),
        ArgumentsDone(next(numbers), call.id, index, call.arguments, call.name),
        ItemDone(next(numbers), index, call),
    ]
