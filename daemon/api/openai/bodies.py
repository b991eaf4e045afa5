"""Bodies of the OpenAI generation calls. Null means the default everywhere."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from mlxd.daemon.api.openai.guides import Choices, GuideText, ResponseFormat, Schema, StructuredOutputs
from mlxd.daemon.api.openai.messages import Messages
from mlxd.daemon.api.openai.tools import Tool, ToolChoice
from mlxd.daemon.api.tool_use import MAX_TOOLS

MAX_COUNT = 2**53
MAX_STOPS = 16
MAX_STOP_LENGTH = 1000
MAX_BIASES = 1024
MAX_REPETITION_PENALTY = 10.0
MAX_N = 16
MAX_PROMPTS = 128
MAX_LOGPROBS = 20

Count = Annotated[int, Meta(ge=1, le=MAX_COUNT)]
Stop = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_LENGTH)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
TopLogprobs = Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


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
    n: Annotated[int, Meta(ge=1, le=MAX_N)] | None = None
    max_tokens: Count | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=MAX_COUNT)] | None = None
    ignore_eos: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=MAX_COUNT)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    xtc_probability: Annotated[float, Meta(ge=0, le=1)] | None = None
    xtc_threshold: Annotated[float, Meta(ge=0, le=0.5)] | None = None
    seed: int | None = None
    stop: Stop | Annotated[list[Stop], Meta(max_length=MAX_STOPS)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=MAX_REPETITION_PENALTY)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Annotated[dict[str, Bias], Meta(max_length=MAX_BIASES)] | None = None
    response_format: ResponseFormat | None = None
    guided_json: Schema | None = None
    guided_regex: GuideText | None = None
    guided_grammar: GuideText | None = None
    guided_choice: Choices | None = None
    structured_outputs: StructuredOutputs | None = None
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
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    reasoning_effort: Effort | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    tools: Annotated[list[Tool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    store: bool | None = None
    prompt_cache_options: dict[str, Any] | None = None


class CompletionBody(GenerationBody, frozen=True, kw_only=True):
    """POST /v1/completions."""

    prompt: str | Annotated[list[str | int | list[int]], Meta(min_length=1)]
    echo: bool | None = None
    logprobs: TopLogprobs | None = None
