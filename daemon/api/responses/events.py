"""The events of a response's stream. Each has the next `sequence_number`, from 0 without gaps."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from mlxd.daemon.api.openai.objects import TokenEntry
from mlxd.daemon.api.responses.objects import OutputItem, OutputText, ReasoningText, ResponseObject

Content = OutputText | ReasoningText


class Event(Struct, frozen=True, tag_field="type"):
    """One event."""

    sequence_number: int


class Created(Event, frozen=True, tag="response.created"):
    """The first event."""

    response: ResponseObject


class InProgress(Event, frozen=True, tag="response.in_progress"):
    """The second event, and every sign of life while the response waits."""

    response: ResponseObject


class Completed(Event, frozen=True, tag="response.completed"):
    """The last event of a response that ended by itself or was cancelled."""

    response: ResponseObject


class Incomplete(Event, frozen=True, tag="response.incomplete"):
    """The last event of a response that ran into its limit."""

    response: ResponseObject


class Failed(Event, frozen=True, tag="response.failed"):
    """The last event but one of a response that failed."""

    response: ResponseObject


class ErrorEvent(Event, frozen=True, tag="error"):
    """What failed."""

    code: str
    message: str
    param: str | None


class ItemAdded(Event, frozen=True, tag="response.output_item.added"):
    """An item begins."""

    output_index: int
    item: OutputItem


class ItemDone(Event, frozen=True, tag="response.output_item.done"):
    """An item is whole."""

    output_index: int
    item: OutputItem


class InItem(Event, frozen=True):
    """Something about one item."""

    item_id: str
    output_index: int


class PartAdded(InItem, frozen=True, tag="response.content_part.added"):
    """A part of an item begins."""

    content_index: int
    part: Content


class PartDone(InItem, frozen=True, tag="response.content_part.done"):
    """A part of an item is whole."""

    content_index: int
    part: Content


class TextDelta(InItem, frozen=True, tag="response.output_text.delta"):
    """More of an answer's text."""

    content_index: int
    delta: str
    logprobs: Sequence[TokenEntry]


class TextDone(InItem, frozen=True, tag="response.output_text.done"):
    """An answer's text."""

    content_index: int
    text: str
    logprobs: Sequence[TokenEntry]


class ReasoningDelta(InItem, frozen=True, tag="response.reasoning_text.delta"):
    """More of what the model thinks."""

    content_index: int
    delta: str


class ReasoningDone(InItem, frozen=True, tag="response.reasoning_text.done"):
    """What the model thought."""

    content_index: int
    text: str


class ArgumentsDelta(InItem, frozen=True, tag="response.function_call_arguments.delta"):
    """The arguments of a call, which come in one piece."""

    delta: str


class ArgumentsDone(InItem, frozen=True, tag="response.function_call_arguments.done"):
    """The arguments of a call."""

    arguments: str
    name: str


AnyEvent = (
    Created
    | InProgress
    | Completed
    | Incomplete
    | Failed
    | ErrorEvent
    | ItemAdded
    | ItemDone
    | PartAdded
    | PartDone
    | TextDelta
    | TextDone
    | ReasoningDelta
    | ReasoningDone
    | ArgumentsDelta
    | ArgumentsDone
)
