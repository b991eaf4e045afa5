"""What crosses between an engine's event loop and its lane: messages go in, events come out."""

from __future__ import annotations

import queue
from dataclasses import dataclass
from typing import Any

from mlxd.engines.embedding_types import EmbeddingRequest
from mlxd.engines.errors import LoadError
from mlxd.engines.shards import Joining, RankLost
from mlxd.engines.step_result import StepResult
from mlxd.engines.tokenizer import Tokenizer
from mlxd.engines.types import EngineLimits, LoadProgress, ModelInfo, Request


@dataclass(frozen=True, slots=True)
class Add:
    """A new request; `arrived` is on the loop's clock."""

    request: Request | EmbeddingRequest
    arrived: float


@dataclass(frozen=True, slots=True)
class Abort:
    """The reader of a request is gone, since `at` on the loop's clock."""

    request_id: str
    at: float


@dataclass(frozen=True, slots=True)
class Cancel:
    """A request is ended on purpose, at `at` on the loop's clock; its reader keeps what was generated."""

    request_id: str
    at: float


@dataclass(frozen=True, slots=True)
class AbortAll:
    """Every request ends with this error."""

    error: Exception


@dataclass(frozen=True, slots=True)
class RoomMade:
    """The answer to a PrefillEvictionRequest: look at the memory again."""

    request_id: str


@dataclass(frozen=True, slots=True)
class MemoryChanged:
    """Memory may have come free elsewhere: sequences that are held look again."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What the disk had for a request, None for nothing."""

    request_id: str
    prefix: Any


@dataclass(frozen=True, slots=True)
class Trim:
    """Keep at most so many bytes of processed prompts; answered by Trimmed."""

    max_bytes: int


@dataclass(frozen=True, slots=True)
class Retune:
    """Other limits from the next step on."""

    limits: EngineLimits


@dataclass(frozen=True, slots=True)
class Close:
    """Drop everything; requests that are left end with this error."""

    error: Exception


Message = Add | Abort | Cancel | AbortAll | RoomMade | MemoryChanged | Restored | Trim | Retune | Close
Inbox = queue.SimpleQueue[Message]


@dataclass(frozen=True, slots=True)
class Loaded:
    """The model is ready. The tokenizer may be used on any thread."""

    info: ModelInfo
    tokenizer: Tokenizer


@dataclass(frozen=True, slots=True)
class Trimmed:
    """The answer to a Trim: what is over is free."""


@dataclass(frozen=True, slots=True)
class Closed:
    """The model is gone and its memory was given back."""


LoopEvent = LoadProgress | Loaded | LoadError | StepResult | Trimmed | Joining | RankLost | Closed
