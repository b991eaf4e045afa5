"""What the OpenAI calls answer with."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType


class CachedTokens(Struct, frozen=True):
    """Prompt tokens that the prefix cache gave."""

    cached_tokens: int


class UsageObject(Struct, frozen=True):
    """Tokens of one request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class Vendor(Struct, frozen=True):
    """How the answer came about; seconds, and tokens per second. `ttft_s` counts from the request's arrival."""

    queue_s: float
    load_s: float
    prefill_s: float | None
    ttft_s: float | None
    decode_tps: float | None
    cancelled: bool


class Delta(Struct, frozen=True, omit_defaults=True):
    """New parts of a message."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChunkChoice(Struct, frozen=True):
    """One step of a streamed answer."""

    index: int
    delta: Delta
    logprobs: None = None
    finish_reason: str | None = None


class AnswerMessage(Struct, frozen=True):
    """A whole message."""

    content: str
    role: str = "assistant"
    refusal: None = None


class ChatChoice(Struct, frozen=True):
    """A whole answer."""

    index: int
    message: AnswerMessage
    finish_reason: str
    logprobs: None = None


class TextChoice(Struct, frozen=True):
    """A whole or a partial text."""

    index: int
    text: str
    logprobs: None = None
    finish_reason: str | None = None


class Answer(Struct, frozen=True, kw_only=True):
    """The envelope around every answer and every chunk."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChunkChoice] | list[ChatChoice] | list[TextChoice]
    usage: UsageObject | UnsetType | None = UNSET
    mlxd: Vendor | UnsetType = UNSET


class ModelObject(Struct, frozen=True, kw_only=True):
    """One name in GET /v1/models. `root` is the model that it means; lengths in tokens, sizes in bytes."""

    id: str
    created: int
    root: str
    preset: str | None
    kind: str
    state: str
    context_length: int
    max_model_len: int
    weight_bytes: int
    aliases: tuple[str, ...]
    object: str = "model"
    owned_by: str = "mlxd"
