"""Bodies of the Anthropic calls. Null means the default everywhere."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from mlxd.daemon.api.anthropic.blocks import CacheControl, Message, Text
from mlxd.daemon.api.anthropic.tools import ToolChoice, Tools

MAX_COUNT = 2**53
MAX_MESSAGES = 100_000
MAX_STOPS = 16
MAX_STOP_LENGTH = 1000
LEAST_BUDGET = 1024

Count = Annotated[int, Meta(ge=1, le=MAX_COUNT)]
Stop = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_LENGTH)]
Display = Literal["summarized", "omitted", "updates"]


class ThinkingEnabled(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="enabled"):
    """Think about so many tokens."""

    budget_tokens: Annotated[int, Meta(ge=LEAST_BUDGET, le=MAX_COUNT)]
    display: Display | None = None
    block_binding: dict[str, Any] | None = None


class ThinkingAdaptive(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="adaptive"):
    """Think as much as it takes."""

    display: Display | None = None
    block_binding: dict[str, Any] | None = None


class ThinkingDisabled(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="disabled"):
    """Do not think."""


ThinkingConfig = ThinkingEnabled | ThinkingAdaptive | ThinkingDisabled


class JsonFormat(Struct, frozen=True, forbid_unknown_fields=True):
    """JSON that a schema describes."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """How much work an answer is worth, and its form."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonFormat | None = None
    task_budget: dict[str, Any] | None = None


class CountBody(Struct, frozen=True, kw_only=True):
    """POST /v1/messages/count_tokens; the fields without a reader have no effect on purpose."""

    messages: Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)]
    model: str | None = None
    max_tokens: Count | None = None
    system: str | list[Text] | None = None
    stream: bool | None = None
    stop_sequences: Annotated[list[Stop], Meta(max_length=MAX_STOPS)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=MAX_COUNT)] | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    output_format: JsonFormat | None = None
    cache_control: CacheControl | None = None
    anthropic_beta: list[str] | None = None
    anthropic_version: str | None = None
    betas: list[str] | None = None
    billing_policy: dict[str, Any] | None = None
    context_management: dict[str, Any] | None = None
    diagnostics: dict[str, Any] | None = None
    fallbacks: Any = None
    inference_geo: str | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    speed: str | None = None
    user_profile_id: str | None = None
    workspace_id: str | None = None


class MessageBody(CountBody, frozen=True, kw_only=True):
    """POST /v1/messages."""

    max_tokens: Count
