"""Bodies of the OpenAI generation calls. Null means the default everywhere."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from mlxd.daemon.api.openai_messages import Messages

MAX_COUNT = 2**53
MAX_STOPS = 16
MAX_STOP_LENGTH = 1000
MAX_BIASES = 1024
MAX_REPETITION_PENALTY = 10.0

Count = Annotated[int, Meta(ge=1, le=MAX_COUNT)]
Stop = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_LENGTH)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Bias = Annotated[float, Meta(ge=-100, le=100)]


class StreamOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """What a stream carries beside text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class GenerationBody(Struct, frozen=True, kw_only=True):
    """The fields that both generation calls share; those without a reader have no effect on purpose."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=MAX_COUNT)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: int | None = None
    stop: Stop | Annotated[list[Stop], Meta(max_length=MAX_STOPS)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=MAX_REPETITION_PENALTY)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Annotated[dict[str, Bias], Meta(max_length=MAX_BIASES)] | None = None
    user: str | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    cache_prompt: bool | None = None


class ChatBody(GenerationBody, frozen=True, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Messages
    max_completion_tokens: Count | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    store: bool | None = None


class CompletionBody(GenerationBody, frozen=True, kw_only=True):
    """POST /v1/completions."""

    prompt: str | Annotated[list[str | int | list[int]], Meta(min_length=1)]
