"""What a worker tells the daemon."""

from __future__ import annotations

from typing import Any

import msgspec

from mlxd.engines.embedding_types import EmbeddingOutput
from mlxd.engines.prompt_price import PromptPrice
from mlxd.engines.transients import Transients
from mlxd.engines.types import EngineStats, ModelInfo, PrefillEvictionRequest, RequestOutput, RequestStatus
from mlxd.engines.worker.forms import ErrorForm, ImagesOutline


class Hello(msgspec.Struct, array_like=True, tag=1, frozen=True):
    """The worker's first message: the protocol that it speaks."""

    protocol: str


class Progress(msgspec.Struct, array_like=True, tag=2, frozen=True):
    done: int
    total: int


class TokenizerFacts(msgspec.Struct, array_like=True, frozen=True):
    """What never changes of a tokenizer; the names are Tokenizer's."""

    end_tokens: list[int]
    size: int
    has_chat_template: bool
    has_tools: bool
    tool_markers: tuple[str, str] | None
    has_reasoning: bool
    takes_images: bool
    encodes_inputs: bool


class Ready(msgspec.Struct, array_like=True, tag=3, frozen=True):
    """The model is loaded."""

    info: ModelInfo
    facts: TokenizerFacts


class LoadFailed(msgspec.Struct, array_like=True, tag=4, frozen=True):
    """The model could not be loaded; the worker ends."""

    reason: str
    message: str


class Gone(msgspec.Struct, array_like=True, tag=5, frozen=True):
    """The model is dropped; the worker ends."""


class Item(msgspec.Struct, array_like=True, frozen=True):
    """What one request has got: one of the three. `texts` has the bytes of tokens in its logprobs that are new."""

    number: int
    output: RequestOutput | None = None
    vectors: EmbeddingOutput | None = None
    error: ErrorForm | None = None
    texts: dict[int, bytes] = {}


class Step(msgspec.Struct, array_like=True, tag=6, frozen=True):
    """A StepResult."""

    items: list[Item] = []
    eviction: PrefillEvictionRequest | None = None
    dead: ErrorForm | None = None
    freed: tuple[float, ...] = ()


class TrimDone(msgspec.Struct, array_like=True, tag=7, frozen=True):
    pass


class Note(msgspec.Struct, array_like=True, tag=8, frozen=True):
    """What readers see of the engine. Of the two prices the one of the kind of model, and None while it is the same."""

    stats: EngineStats
    statuses: list[RequestStatus]
    prompt_price: PromptPrice | None = None
    encoder_price: Transients | None = None


class Beat(msgspec.Struct, array_like=True, tag=9, frozen=True):
    """The worker is alive; `age` is the heartbeat's, the others are MLX's counters in bytes."""

    age: float
    mlx_active: int
    mlx_cache: int
    mlx_peak: int


class Opened(msgspec.Struct, array_like=True, tag=17, frozen=True):
    """The libraries are imported; the load begins."""


class Working(msgspec.Struct, array_like=True, tag=10, frozen=True):
    """The engine has work, or none any more."""

    now: bool


class MemoryCall(msgspec.Struct, array_like=True, tag=11, frozen=True):
    """A question to the engine's MemoryStake, by the name of its method; the lane waits for the MemoryAnswer."""

    number: int
    method: str
    nbytes: int = 0


class MemorySet(msgspec.Struct, array_like=True, tag=12, frozen=True):
    promised: int
    running: int


class WakeMe(msgspec.Struct, array_like=True, tag=13, frozen=True):
    """Tell once when memory may have come free."""


class Reply(msgspec.Struct, array_like=True, tag=14, frozen=True):
    """The result of a Call, or what it raised. `held` is the number of what the worker keeps until it gets a Drop."""

    number: int
    value: Any = None
    images: ImagesOutline | None = None
    held: int | None = None
    error: ErrorForm | None = None


class Reclaimed(msgspec.Struct, array_like=True, tag=15, frozen=True):
    number: int


class LogLine(msgspec.Struct, array_like=True, tag=16, frozen=True):
    """A line of the worker's log; `fields` is JSON text."""

    level: int
    logger: str
    event: str
    fields: bytes


class StepsHeld(msgspec.Struct, array_like=True, tag=18, frozen=True):
    """The answer to a HoldSteps: whether the running step has ended."""

    ended: bool


class Failing(msgspec.Struct, array_like=True, tag=19, frozen=True):
    """Why the worker ends now, for whoever waits for anything of it."""

    why: str


class RanksJoin(msgspec.Struct, array_like=True, tag=20, frozen=True):
    """See Joining. Whatever becomes of the others, the worker cannot notice it, nor say anything."""

    pids: dict[str, int]


ToDaemon = (
    Hello
    | Progress
    | Ready
    | LoadFailed
    | Gone
    | Step
    | TrimDone
    | Note
    | Beat
    | Working
    | MemoryCall
    | MemorySet
    | WakeMe
    | Reply
    | Reclaimed
    | LogLine
    | Opened
    | StepsHeld
    | Failing
    | RanksJoin
)
