"""Items of a conversation as they are kept and listed: whole, and each with an id."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct

from mlxd.daemon.api.responses.conversation import part_text
from mlxd.daemon.api.responses.items import (
    CallItem,
    ImagePart,
    Item,
    MessageItem,
    Part,
    Parts,
    ReasoningItem,
    RefusalPart,
    ResultItem,
)
from mlxd.daemon.api.responses.objects import (
    FunctionCall,
    FunctionCallOutput,
    InputImage,
    InputItem,
    InputText,
    Message,
    OutputText,
    Reasoning,
    ReasoningText,
    Refusal,
)
from mlxd.daemon.api.responses.store import Turn


class _Answered(Struct, frozen=True):
    """What later turns need of a response."""

    output: list[Item]


_ITEMS = msgspec.json.Decoder(list[Item])
_ANSWER = msgspec.json.Decoder(_Answered)


def items_by_id(turns: Iterable[Turn]) -> dict[str, Item]:
    """The items that the responses of these turns have."""
    return {item.id: item for turn in turns for item in output_of(turn) if item.id is not None}


def encode_input(items: Sequence[Item]) -> bytes:
    """Items that were made into messages, as they are kept."""
    return b"[" + b",".join(msgspec.json.encode(kept_item(item)) for item in items) + b"]"


def input_of(turn: Turn) -> list[Item]:
    """The items that a turn added."""
    return _ITEMS.decode(turn.input)


def output_of(turn: Turn) -> list[Item]:
    """The items that its response has."""
    return _ANSWER.decode(turn.answer).output


def items_up_to(turn: Turn | None) -> list[Item]:
    """All items of the conversation up to and with a turn, oldest first."""
    turns = turn.conversation() if turn is not None else []
    return [item for each in turns for item in (*input_of(each), *output_of(each))]


def kept_item(item: Item) -> InputItem:
    """An item with everything that clients expect of one."""
    status = item.status or "completed"
    match item:
        case MessageItem(role="assistant"):
            return Message(item.id or new_id("msg"), [_said(part) for part in _parts(item.content)], status)
        case MessageItem():
            return Message(item.id or new_id("msg"), _heard(item.content), status, item.role)
        case CallItem():
            return FunctionCall(item.id or new_id("fc"), item.call_id, item.name, item.arguments, status)
        case ResultItem():
            output = item.output if isinstance(item.output, str) else _heard(item.output)
            return FunctionCallOutput(item.id or new_id("fco"), item.call_id, output, status)
        case ReasoningItem():
            thoughts = [ReasoningText(part.text) for part in item.content or ()]
            return Reasoning(item.id or new_id("rs"), thoughts, status)


def new_id(kind: str) -> str:
    """An id for an item that no other has."""
    return f"{kind}_{secrets.token_hex(16)}"


def _parts(content: Parts) -> Sequence[str | Part]:
    return [content] if isinstance(content, str) else content


def _heard(content: Parts) -> list[InputText | InputImage | OutputText | Refusal]:
    return [_shown(part) for part in _parts(content)]


def _shown(part: str | Part) -> InputText | InputImage:
    if isinstance(part, ImagePart):
        return InputImage(part.image_url or "", part.detail or "auto")
    return InputText(_text(part))


def _said(part: str | Part) -> OutputText | Refusal:
    return Refusal(part.refusal) if isinstance(part, RefusalPart) else OutputText(_text(part))


def _text(part: str | Part) -> str:
    return part if isinstance(part, str) else part_text(part, "input")
