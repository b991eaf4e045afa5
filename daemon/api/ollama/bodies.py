"""Bodies of the Ollama calls. Null means the default everywhere."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from mlxd.daemon.api.ollama.messages import Messages
from mlxd.daemon.api.ollama.options import Options
from mlxd.daemon.api.ollama.tools import Tool
from mlxd.daemon.api.tool_use import MAX_TOOLS

MAX_LOGPROBS = 20
MAX_INPUTS = 2048
MAX_DIMENSIONS = 2**31 - 1

Format = Literal["", "json"] | dict[str, Any]
Think = bool | Literal["low", "medium", "high", "max"]
Duration = int | float | str
TopLogprobs = Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)]


class GenerationBody(Struct, frozen=True, kw_only=True):
    """The fields that both generation calls share. `stream` is true unless it is said otherwise."""

    model: str | None = None
    stream: bool | None = None
    format: Format | None = None
    options: Options | None = None
    keep_alive: Duration | None = None
    think: Think | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None


class ChatBody(GenerationBody, frozen=True, kw_only=True):
    """POST /api/chat. Without messages the model is only loaded or unloaded."""

    messages: Messages | None = None
    tools: Annotated[list[Tool], Meta(max_length=MAX_TOOLS)] | None = None


class GenerateBody(GenerationBody, frozen=True, kw_only=True):
    """POST /api/generate. Without a prompt the model is only loaded or unloaded."""

    prompt: str | None = None
    system: str | None = None
    raw: bool | None = None
    images: list[str] | None = None


class EmbedBody(Struct, frozen=True, kw_only=True):
    """POST /api/embed. Without an input the model is only loaded or unloaded."""

    model: str | None = None
    input: str | Annotated[list[str], Meta(max_length=MAX_INPUTS)] | None = None
    truncate: bool | None = None
    dimensions: Annotated[int, Meta(ge=0, le=MAX_DIMENSIONS)] | None = None
    options: Options | None = None
    keep_alive: Duration | None = None


class EmbeddingsBody(Struct, frozen=True, kw_only=True):
    """POST /api/embeddings, which was there before /api/embed and takes one text."""

    model: str | None = None
    prompt: str | None = None
    options: Options | None = None
    keep_alive: Duration | None = None


class ShowBody(Struct, frozen=True, kw_only=True):
    """POST /api/show. `name` is what older clients call the model."""

    model: str | None = None
    name: str | None = None
    verbose: bool | None = None
