"""What the Ollama calls answer with. Durations are in nanoseconds, moments as RFC 3339 has them."""

from __future__ import annotations

from typing import Annotated, Any, Generic, TypeVar

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from mlxd.daemon.api.vendor import Vendor

Vector = TypeVar("Vector")


class ErrorBody(Struct, frozen=True):
    """Ollama's own shape of an error, with what else there is to say of it beside."""

    error: str
    code: str
    param: str | None
    details: dict[str, Any] | None


class CalledFunction(Struct, frozen=True):
    """What the model calls; `index` counts the calls of an answer, `arguments` are a JSON object."""

    index: int
    name: str
    arguments: Annotated[Raw, Meta(extra_json_schema={"type": "object"})]


class Call(Struct, frozen=True):
    """One tool call of a message."""

    id: str
    function: CalledFunction


class TokenLogprob(Struct, frozen=True):
    """A token that might have been, with its bytes in UTF-8."""

    token: str
    logprob: float
    bytes: list[int]


class Logprob(Struct, frozen=True):
    """A generated token, and the likeliest tokens in its place."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TokenLogprob]


class AnswerMessage(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A message, or what is new of it."""

    role: str
    content: str
    thinking: str | UnsetType = UNSET
    tool_calls: list[Call] | UnsetType = UNSET


class Answer(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What answers and their pieces share; all but the first three are there at the end."""

    model: str
    created_at: str
    done: bool
    done_reason: str | UnsetType = UNSET
    logprobs: list[Logprob] | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET
    mlxd: Vendor | UnsetType = UNSET


class ChatAnswer(Answer, frozen=True, omit_defaults=True, kw_only=True):
    """POST /api/chat."""

    message: AnswerMessage


class GenerateAnswer(Answer, frozen=True, omit_defaults=True, kw_only=True):
    """POST /api/generate."""

    response: str
    thinking: str | UnsetType = UNSET


class EmbedAnswer(Struct, Generic[Vector], frozen=True, kw_only=True):
    """POST /api/embed: a vector for each input, in their order; one that a cancel came before is empty."""

    model: str
    embeddings: list[Vector]
    total_duration: int
    load_duration: int
    prompt_eval_count: int
    mlxd: Vendor


class EmbeddingsAnswer(Struct, frozen=True):
    """POST /api/embeddings."""

    embedding: list[float]


class Details(Struct, frozen=True, kw_only=True):
    """What a model is, for people; empty where its files do not say."""

    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str
    format: str = "mlx"
    parent_model: str = ""


class ListedModel(Struct, frozen=True, kw_only=True):
    """One name in GET /api/tags; `size` in bytes."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: Details
    capabilities: list[str]


class ModelTags(Struct, frozen=True):
    """Every name."""

    models: list[ListedModel]


class LoadedModel(Struct, frozen=True, kw_only=True):
    """One model in memory; sizes in bytes. All of it is in the memory that processors share."""

    name: str
    model: str
    size: int
    digest: str
    details: Details
    expires_at: str
    size_vram: int
    context_length: int


class LoadedModels(Struct, frozen=True):
    """The models in memory."""

    models: list[LoadedModel]


class ShownModel(Struct, frozen=True, kw_only=True):
    """POST /api/show."""

    modelfile: str
    parameters: str
    template: str
    details: Details
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


class VersionAnswer(Struct, frozen=True):
    """Of Ollama the version whose API this is, and the daemon's own."""

    version: str
    mlxd: str
