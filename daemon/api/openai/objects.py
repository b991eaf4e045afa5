"""What the OpenAI calls answer with."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Generic, TypeVar

from msgspec import UNSET, Struct, UnsetType

from mlxd.daemon.api.vendor import Vendor


class CachedTokens(Struct, frozen=True):
    """Prompt tokens that the prefix cache gave."""

    cached_tokens: int


class UsageObject(Struct, frozen=True):
    """Tokens of one request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class TopEntry(Struct, frozen=True):
    """A token that might have been, with its bytes in UTF-8."""

    token: str
    logprob: float
    bytes: list[int]


class TokenEntry(Struct, frozen=True):
    """A generated token, and the likeliest tokens in its place."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopEntry]


class ChatLogprobs(Struct, frozen=True):
    """The tokens of a message."""

    content: list[TokenEntry]
    refusal: None = None


class TextLogprobs(Struct, frozen=True):
    """The tokens of a text, as parallel lists."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CalledFunction(Struct, frozen=True):
    """What the model calls; `arguments` is JSON text."""

    name: str
    arguments: str


class Call(Struct, frozen=True):
    """One tool call of a message."""

    id: str
    function: CalledFunction
    type: str = "function"


class FunctionDelta(Struct, frozen=True, omit_defaults=True):
    """New parts of a call's function."""

    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class CallDelta(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """New parts of a message's tool call."""

    index: int
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    function: FunctionDelta


class Delta(Struct, frozen=True, omit_defaults=True):
    """New parts of a message."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[CallDelta] | UnsetType = UNSET


class ChunkChoice(Struct, frozen=True):
    """One step of a streamed answer."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None


class AnswerMessage(Struct, frozen=True):
    """A whole message; one that only makes calls has no content."""

    content: str | None
    role: str = "assistant"
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[Call] | UnsetType = UNSET


class ChatChoice(Struct, frozen=True):
    """A whole answer."""

    index: int
    message: AnswerMessage
    finish_reason: str
    logprobs: ChatLogprobs | None = None


class TextChoice(Struct, frozen=True):
    """A whole or a partial text."""

    index: int
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: str | None = None


Choice = TypeVar("Choice", bound=Struct)


class Answer(Struct, Generic[Choice], frozen=True, kw_only=True):
    """The envelope around every answer and every chunk."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    choices: Sequence[Choice]
    usage: UsageObject | UnsetType | None = UNSET
    mlxd: Vendor | UnsetType = UNSET


ChatAnswer = Answer[ChatChoice]
ChatChunk = Answer[ChunkChoice]
TextAnswer = Answer[TextChoice]


class ModelStatus(Struct, frozen=True):
    """The state of a model in a llama.cpp router's words: `unloaded`, `loading` or `loaded`. After a failed load it is
    unloaded and `failed`.
    """

    value: str
    args: tuple[str, ...] = ()
    failed: bool | UnsetType = UNSET
    exit_code: int | UnsetType = UNSET


class ModelMeta(Struct, frozen=True):
    """What llama.cpp says of a model: its context in tokens, its weights in bytes."""

    n_ctx: int
    size: int


class ModelArchitecture(Struct, frozen=True):
    """What llama.cpp says a model reads and writes."""

    input_modalities: tuple[str, ...]
    output_modalities: tuple[str, ...] = ("text",)


class ModelObject(Struct, frozen=True, kw_only=True):
    """One name in GET /v1/models. `root` is the model that it means; lengths in tokens, sizes in bytes, and `waiting`
    counts requests that wait for it. What a `peer` answers to has what that says of it, in its words.

    It has what OpenAI's and Anthropic's clients expect of a model. Anthropic's get no `capabilities`: they know others.
    """

    id: str
    created: int
    created_at: datetime
    display_name: str
    max_input_tokens: int | UnsetType
    root: str
    preset: str | None
    kind: str | UnsetType
    state: str
    waiting: int
    context_length: int | UnsetType
    max_model_len: int | UnsetType
    weight_bytes: int | UnsetType
    aliases: tuple[str, ...]
    status: ModelStatus
    meta: ModelMeta | UnsetType
    architecture: ModelArchitecture | UnsetType
    capabilities: list[str] | UnsetType
    peer: str | UnsetType = UNSET
    object: str = "model"
    type: str = "model"
    owned_by: str = "mlxd"
    lifecycle: str = "active"


class ModelList(Struct, frozen=True):
    """Every name, all on one page."""

    data: list[ModelObject]
    first_id: str | None
    last_id: str | None
    has_more: bool = False
    object: str = "list"
