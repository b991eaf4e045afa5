"""What the Anthropic calls answer with, whole and in events."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from mlxd.daemon.api.vendor import Vendor


class MessageUsage(Struct, frozen=True):
    """Tokens of one request. The prompt is the first three together; nothing is charged for being kept."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0


class TextBlock(Struct, frozen=True, tag_field="type", tag="text"):
    """Text for a reader."""

    text: str


class ThinkingBlock(Struct, frozen=True, tag_field="type", tag="thinking"):
    """What the model thought."""

    thinking: str
    signature: str


class ToolUseBlock(Struct, frozen=True, tag_field="type", tag="tool_use"):
    """A call of a tool; `input` is a JSON object."""

    id: str
    name: str
    input: Annotated[msgspec.Raw, Meta(extra_json_schema={"type": "object"})]


AnswerBlock = TextBlock | ThinkingBlock | ToolUseBlock


class MessageAnswer(Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    """A message, or the beginning of one."""

    id: str
    model: str
    content: list[AnswerBlock]
    usage: MessageUsage
    role: str = "assistant"
    stop_reason: str | None = None
    stop_sequence: str | None = None
    mlxd: Vendor | UnsetType = UNSET


class TokenCount(Struct, frozen=True):
    """Tokens of a prompt."""

    input_tokens: int


class MessageStart(Struct, frozen=True, tag_field="type", tag="message_start"):
    """The first event."""

    message: MessageAnswer


class BlockStart(Struct, frozen=True, tag_field="type", tag="content_block_start"):
    """A block begins, empty."""

    index: int
    content_block: AnswerBlock


class TextDelta(Struct, frozen=True, tag_field="type", tag="text_delta"):
    """More text."""

    text: str


class ThinkingDelta(Struct, frozen=True, tag_field="type", tag="thinking_delta"):
    """More of a thought."""

    thinking: str


class SignatureDelta(Struct, frozen=True, tag_field="type", tag="signature_delta"):
    """A thought's signature, at its end."""

    signature: str


class InputJsonDelta(Struct, frozen=True, tag_field="type", tag="input_json_delta"):
    """More of a call's input, as JSON text."""

    partial_json: str


class BlockDelta(Struct, frozen=True, tag_field="type", tag="content_block_delta"):
    """More of a block."""

    index: int
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta


class BlockStop(Struct, frozen=True, tag_field="type", tag="content_block_stop"):
    """A block ends."""

    index: int


class Stopped(Struct, frozen=True):
    """Why a message ended."""

    stop_reason: str
    stop_sequence: str | None


class MessageDelta(Struct, frozen=True, tag_field="type", tag="message_delta"):
    """The end of a message, with all its tokens."""

    delta: Stopped
    usage: MessageUsage
    mlxd: Vendor


class MessageStop(Struct, frozen=True, tag_field="type", tag="message_stop"):
    """The last event."""


class Ping(Struct, frozen=True, tag_field="type", tag="ping"):
    """A sign of life."""


class FailureObject(Struct, frozen=True):
    """What went wrong, and what to do."""

    type: str
    message: str
    code: str
    param: str | None
    details: dict[str, Any] | None


class FailureAnswer(Struct, frozen=True, tag_field="type", tag="error"):
    """The Anthropic shape of an error, as an answer and as an event."""

    error: FailureObject
    request_id: str


Event = MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop | Ping | FailureAnswer
