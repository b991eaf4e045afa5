"""What the Responses API answers with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from mlxd.daemon.api.openai.guides import ObjectFormat, TextFormat
from mlxd.daemon.api.openai.objects import TokenEntry
from mlxd.daemon.api.responses.bodies import CreateBody, FunctionTool, SchemaFormat, ToolChoice
from mlxd.daemon.api.responses.items import ItemStatus
from mlxd.daemon.api.vendor import Vendor

Status = Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]


class InputText(Struct, frozen=True, tag_field="type", tag="input_text"):
    """Text that was sent."""

    text: str


class InputImage(Struct, frozen=True, tag_field="type", tag="input_image"):
    """An image that was sent."""

    image_url: str
    detail: str = "auto"


class OutputText(Struct, frozen=True, tag_field="type", tag="output_text"):
    """Text of an answer; nothing here makes annotations."""

    text: str
    annotations: tuple[Any, ...] = ()
    logprobs: Sequence[TokenEntry] = ()


class Refusal(Struct, frozen=True, tag_field="type", tag="refusal"):
    """A refusal that was sent as part of an earlier answer."""

    refusal: str


class ReasoningText(Struct, frozen=True, tag_field="type", tag="reasoning_text"):
    """What the model thought."""

    text: str


class Message(Struct, frozen=True, tag_field="type", tag="message"):
    """A message of the model, or one to it."""

    id: str
    content: Sequence[InputText | InputImage | OutputText | Refusal]
    status: ItemStatus = "completed"
    role: str = "assistant"


class Reasoning(Struct, frozen=True, tag_field="type", tag="reasoning"):
    """What the model thought, in its own words; there is no summary."""

    id: str
    content: Sequence[ReasoningText]
    status: ItemStatus
    summary: tuple[Any, ...] = ()


class FunctionCall(Struct, frozen=True, tag_field="type", tag="function_call"):
    """A call of the model; `arguments` is JSON text."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: ItemStatus


class FunctionCallOutput(Struct, frozen=True, tag_field="type", tag="function_call_output"):
    """What a function gave back."""

    id: str
    call_id: str
    output: str | Sequence[InputText | InputImage | OutputText | Refusal]
    status: ItemStatus = "completed"


OutputItem = Message | Reasoning | FunctionCall
InputItem = OutputItem | FunctionCallOutput


class Failure(Struct, frozen=True):
    """Why a response failed, in the words that clients know."""

    code: str
    message: str


class IncompleteDetails(Struct, frozen=True):
    """Why a response stops before its end."""

    reason: Literal["max_output_tokens"] = "max_output_tokens"


class InputTokensDetails(Struct, frozen=True):
    """Prompt tokens that the prefix cache gave; what goes into it is not counted."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(Struct, frozen=True):
    """Tokens of reasoning are not counted apart."""

    reasoning_tokens: int = 0


class ResponseUsage(Struct, frozen=True):
    """Tokens of one response."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ReasoningUsed(Struct, frozen=True):
    """What was asked for in `reasoning`."""

    effort: str | None = None
    summary: None = None


class TextUsed(Struct, frozen=True):
    """The form that was asked for."""

    format: TextFormat | ObjectFormat | SchemaFormat = msgspec.field(default_factory=TextFormat)
    verbosity: Literal["medium"] = "medium"


class ShownTool(Struct, frozen=True, tag_field="type", tag="function"):
    """A tool that was offered."""

    name: str
    description: str | None
    parameters: Mapping[str, Any] | None
    strict: bool | None

    @staticmethod
    def of(tool: FunctionTool) -> ShownTool:
        """The tool as it is shown."""
        return ShownTool(tool.name, tool.description, tool.parameters, tool.strict)


class ResponseObject(Struct, frozen=True, kw_only=True):
    """A response. Times are whole seconds since the epoch."""

    id: str
    created_at: int
    model: str
    status: Status = "in_progress"
    output: Sequence[OutputItem] = ()
    usage: ResponseUsage | None = None
    completed_at: int | None = None
    error: Failure | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: Sequence[ShownTool] = ()
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int = 0
    text: TextUsed = msgspec.field(default_factory=TextUsed)
    reasoning: ReasoningUsed = msgspec.field(default_factory=ReasoningUsed)
    metadata: Mapping[str, str] = msgspec.field(default_factory=dict)
    store: bool = True
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    object: Literal["response"] = "response"
    background: bool = False
    max_tool_calls: None = None
    service_tier: str = "default"
    truncation: str = "disabled"
    mlxd: Vendor | UnsetType = UNSET


class DeletedResponse(Struct, frozen=True):
    """A response that is no longer kept."""

    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


class ItemList(Struct, frozen=True):
    """Some of the items that a response was made from."""

    data: Sequence[InputItem]
    first_id: str
    last_id: str
    has_more: bool
    object: Literal["list"] = "list"


class InputTokens(Struct, frozen=True):
    """The length of a prompt."""

    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"


def begun(body: CreateBody, response_id: str, model: str, created_at: int) -> ResponseObject:
    """A response that has only begun; `model` is the one that answers, if the request names none."""
    text, reasoning = body.text, body.reasoning
    return ResponseObject(
        id=response_id,
        created_at=created_at,
        model=body.model or model,
        instructions=body.instructions,
        previous_response_id=body.previous_response_id,
        tools=[ShownTool.of(tool) for tool in body.tools or () if isinstance(tool, FunctionTool)],
        tool_choice=body.tool_choice or "auto",
        parallel_tool_calls=body.parallel_tool_calls is not False,
        max_output_tokens=body.max_output_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        top_logprobs=body.top_logprobs or 0,
        text=TextUsed(text.format) if text is not None and text.format is not None else TextUsed(),
        reasoning=ReasoningUsed(reasoning.effort if reasoning is not None else None),
        metadata=body.metadata or {},
        store=body.store is not False,
        user=body.user,
        safety_identifier=body.safety_identifier,
        prompt_cache_key=body.prompt_cache_key,
    )
