"""Bodies of the calls that make responses, and the queries of those that read them. Null means the default."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from mlxd.daemon.api.openai.bodies import Count, Effort, TopLogprobs
from mlxd.daemon.api.openai.guides import MAX_SCHEMA_NAME, ObjectFormat, TextFormat
from mlxd.daemon.api.openai.tools import FunctionName
from mlxd.daemon.api.responses.items import MAX_ITEM_ID, MAX_ITEMS, SentItem
from mlxd.daemon.api.tool_use import MAX_TOOLS

MAX_METADATA = 16
MAX_METADATA_KEY = 64
MAX_METADATA_VALUE = 512
MAX_INCLUDED = 16

LOGPROBS = "message.output_text.logprobs"
ENCRYPTED = "reasoning.encrypted_content"

Summary = Literal["auto", "concise", "detailed"]
MetadataKey = Annotated[str, Meta(max_length=MAX_METADATA_KEY)]
MetadataValue = Annotated[str, Meta(max_length=MAX_METADATA_VALUE)]
Metadata = Annotated[dict[MetadataKey, MetadataValue], Meta(max_length=MAX_METADATA)]
Includable = Literal["message.output_text.logprobs", "reasoning.encrypted_content"]
Included = Annotated[list[Includable], Meta(max_length=MAX_INCLUDED)]


class FunctionTool(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="function"):
    """What can be called; `parameters` is a JSON Schema."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    allowed_callers: list[Literal["direct"]] | None = None
    defer_loading: bool | None = None
    output_schema: None = None
    runs_async: bool | None = field(default=None, name="async")


class CustomTool(Struct, frozen=True, tag_field="type", tag="custom"):
    """A tool that takes text. It and those below are passed over beside functions: coding agents always offer them."""


class ImageTool(Struct, frozen=True, tag_field="type", tag="image_generation"):
    """A tool that makes images."""


class Namespace(Struct, frozen=True, tag_field="type", tag="namespace"):
    """Functions under a name of their own."""


class ToolSearch(Struct, frozen=True, tag_field="type", tag="tool_search"):
    """A tool that finds others."""


class WebSearch(Struct, frozen=True, tag_field="type", tag="web_search"):
    """A tool that looks things up."""


Tool = FunctionTool | CustomTool | ImageTool | Namespace | ToolSearch | WebSearch


class FunctionChoice(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="function"):
    """A `tool_choice` that names the function to call."""

    name: FunctionName


class AllowedTool(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="function"):
    """One of the tools that may be called, by its name."""

    name: FunctionName


class AllowedChoice(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="allowed_tools"):
    """A `tool_choice` that leaves some of the tools."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[AllowedTool], Meta(min_length=1, max_length=MAX_TOOLS)]


ToolChoice = Literal["none", "auto", "required"] | FunctionChoice | AllowedChoice


class SchemaFormat(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="json_schema"):
    """JSON that a schema describes; name and description are the client's own, and it is always kept to."""

    name: Annotated[str, Meta(min_length=1, max_length=MAX_SCHEMA_NAME)]
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


class TextConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """The form of the answer's text."""

    format: TextFormat | ObjectFormat | SchemaFormat | None = None
    verbosity: Literal["medium"] | None = None


class ReasoningConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """How much the model is to think; no summaries are made of it."""

    effort: Effort | None = None
    summary: Summary | None = None
    generate_summary: Summary | None = None
    context: Literal["auto"] | None = None
    mode: Literal["standard"] | None = None


class StreamOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """What a stream carries beside its events."""

    include_obfuscation: bool | None = None
    reasoning_summary_delivery: str | None = None


class PromptBody(Struct, frozen=True, kw_only=True):
    """POST /v1/responses/input_tokens: what goes into a model."""

    model: str | None = None
    input: str | Annotated[list[SentItem], Meta(max_length=MAX_ITEMS)] | None = None
    instructions: str | None = None
    previous_response_id: Annotated[str, Meta(max_length=MAX_ITEM_ID)] | None = None
    tools: Annotated[list[Tool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningConfig | None = None
    text: TextConfig | None = None
    truncation: Literal["disabled"] | None = None


class CreateBody(PromptBody, frozen=True, kw_only=True):
    """POST /v1/responses. What has no effect on purpose is in the table of fields."""

    include: Included | None = None
    max_output_tokens: Count | None = None
    metadata: Metadata | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_logprobs: TopLogprobs | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
    service_tier: str | None = None
    client_metadata: dict[str, Any] | None = None
