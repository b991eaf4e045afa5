"""Items of a conversation as clients send them. Each kind is told by its `type`, which messages may leave out.

There may be very many, and what comes from JSON has no cycles: the garbage collector is spared them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from mlxd.daemon.api.refusals import InvalidField
from mlxd.daemon.api.tool_use import MAX_TOOL_NAME

MAX_ITEMS = 100_000
MAX_ITEM_ID = 256

ItemId = Annotated[str, Meta(min_length=1, max_length=MAX_ITEM_ID)]
ItemStatus = Literal["in_progress", "completed", "incomplete"]


class InputTextPart(Struct, frozen=True, gc=False, forbid_unknown_fields=True, tag_field="type", tag="input_text"):
    """What is said to the model."""

    text: str
    prompt_cache_breakpoint: Any = None


class OutputTextPart(Struct, frozen=True, gc=False, forbid_unknown_fields=True, tag_field="type", tag="output_text"):
    """What the model said."""

    text: str
    annotations: Any = None
    logprobs: Any = None


class RefusalPart(Struct, frozen=True, gc=False, forbid_unknown_fields=True, tag_field="type", tag="refusal"):
    """What the model said instead; it is text for it."""

    refusal: str


class ImagePart(Struct, frozen=True, gc=False, forbid_unknown_fields=True, tag_field="type", tag="input_image"):
    """An image, by URL or inline. `detail` has no effect: models see what their files say."""

    image_url: str | None = None
    file_id: str | None = None
    detail: Literal["low", "high", "auto", "original"] | None = None
    prompt_cache_breakpoint: Any = None


class FilePart(Struct, frozen=True, gc=False, tag_field="type", tag="input_file"):
    """A document."""


class AudioPart(Struct, frozen=True, gc=False, tag_field="type", tag="input_audio"):
    """A sound."""


Part = InputTextPart | OutputTextPart | RefusalPart | ImagePart | FilePart | AudioPart
Parts = str | Annotated[list[Part], Meta(min_length=1)]


class MessageItem(Struct, frozen=True, gc=False, forbid_unknown_fields=True, tag_field="type", tag="message"):
    """Something that was said. `phase` and `status` tell the model nothing."""

    role: Literal["user", "assistant", "system", "developer"]
    content: Parts
    id: ItemId | None = None
    status: ItemStatus | None = None
    phase: str | None = None


class CallItem(Struct, frozen=True, gc=False, forbid_unknown_fields=True, tag_field="type", tag="function_call"):
    """A function call that the model made; `arguments` is JSON text."""

    call_id: ItemId
    name: Annotated[str, Meta(min_length=1, max_length=MAX_TOOL_NAME)]
    arguments: str
    id: ItemId | None = None
    status: ItemStatus | None = None
    namespace: None = None
    caller: Any = None
    created_by: Any = None
    runs_async: bool | None = field(default=None, name="async")


class ResultItem(
    Struct, frozen=True, gc=False, forbid_unknown_fields=True, tag_field="type", tag="function_call_output"
):
    """What a function gave back."""

    call_id: ItemId
    output: Parts
    id: ItemId | None = None
    status: ItemStatus | None = None
    name: str | None = None
    namespace: None = None
    caller: Any = None
    created_by: Any = None


class ReasoningPart(Struct, frozen=True, gc=False, forbid_unknown_fields=True, tag_field="type", tag="reasoning_text"):
    """What the model thought."""

    text: str


class SummaryPart(Struct, frozen=True, gc=False, forbid_unknown_fields=True, tag_field="type", tag="summary_text"):
    """What somebody made of the model's thoughts."""

    text: str


class ReasoningItem(Struct, frozen=True, gc=False, forbid_unknown_fields=True, tag_field="type", tag="reasoning"):
    """What the model thought before it answered; a summary is not shown to it."""

    content: list[ReasoningPart] | None = None
    summary: list[SummaryPart] | None = None
    encrypted_content: str | None = None
    id: ItemId | None = None
    status: ItemStatus | None = None


class ReferenceItem(Struct, frozen=True, gc=False, forbid_unknown_fields=True, tag_field="type", tag="item_reference"):
    """Stands for an item in the output of a response that is kept."""

    id: ItemId


Item = MessageItem | CallItem | ResultItem | ReasoningItem
SentItem = Item | ReferenceItem

SERVED = frozenset({"message", "function_call", "function_call_output", "reasoning", "item_reference"})
REFUSED = frozenset(
    {
        "additional_tools",
        "apply_patch_call",
        "apply_patch_call_output",
        "code_interpreter_call",
        "compaction",
        "compaction_trigger",
        "computer_call",
        "computer_call_output",
        "configuration_update",
        "custom_tool_call",
        "custom_tool_call_output",
        "file_search_call",
        "image_generation_call",
        "local_shell_call",
        "local_shell_call_output",
        "mcp_approval_request",
        "mcp_approval_response",
        "mcp_call",
        "mcp_list_tools",
        "program",
        "program_output",
        "shell_call",
        "shell_call_output",
        "tool_search_call",
        "tool_search_output",
        "web_search_call",
    }
)


def with_types(sent: object) -> object:
    """Items as they were sent, each with its type. Raises InvalidField for types that are not served."""
    if not isinstance(sent, list):
        return sent
    return [_with_type(item, f"input[{index}]") for index, item in enumerate(sent)]


def _with_type(item: object, place: str) -> object:
    if not isinstance(item, dict):
        return item
    kind = item.get("type")
    if kind is None:
        return {**item, "type": _implied_type(item)}
    if isinstance(kind, str) and kind in REFUSED:
        raise InvalidField(f"{place}.type: items of type {kind} are not served here; leave them out", f"{place}.type")
    return item


def _implied_type(item: Mapping[str, Any]) -> str:
    return "item_reference" if "id" in item and not {"role", "content"} & item.keys() else "message"
