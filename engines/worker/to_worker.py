"""What the daemon tells a worker. Moments are on the monotonic clock, which is one for all processes of a machine."""

from __future__ import annotations

from pathlib import Path

import msgspec

from mlxd.engines.types import EngineConfig, EngineLimits, SamplingParams


class Start(msgspec.Struct, array_like=True, tag=1, frozen=True):
    """The first message. `kind` is "text" or "embedding", `ceiling` the bytes that the process may use, `prefix_folder`
    where prompt prefixes are kept on the disk, None for nowhere.
    """

    kind: str
    config: EngineConfig
    ceiling: int | None = None
    prefix_folder: Path | None = None
    log_level: int = 0
    others_work: int = 0


class AddText(msgspec.Struct, array_like=True, tag=2, frozen=True):
    """A Request; `number` is its own in this worker. `images` and `sampling.guide.compiled` are numbers of what the
    worker holds.
    """

    number: int
    id: str
    prompt: bytes
    sampling: SamplingParams
    arrived: float
    continues_text: bool = False
    tools: bytes | None = None
    max_calls: int | None = None
    images: int | None = None
    alone: bool = False


class AddInputs(msgspec.Struct, array_like=True, tag=3, frozen=True):
    """An EmbeddingRequest: for each input its tokens, and how many of them are a second text's."""

    number: int
    id: str
    inputs: list[tuple[bytes, int]]
    arrived: float
    alone: bool = False


class GiveUp(msgspec.Struct, array_like=True, tag=4, frozen=True):
    """An Abort, or with `cancel` a Cancel."""

    id: str
    at: float
    cancel: bool = False


class EndAll(msgspec.Struct, array_like=True, tag=5, frozen=True):
    """An AbortAll, or with `close` a Close; `order` is the number of its error."""

    order: int
    close: bool = False


class RoomMadeFor(msgspec.Struct, array_like=True, tag=6, frozen=True):
    id: str


class MemoryMayBeFree(msgspec.Struct, array_like=True, tag=7, frozen=True):
    """The answer to a WakeMe."""


class TrimTo(msgspec.Struct, array_like=True, tag=8, frozen=True):
    max_bytes: int


class RetuneTo(msgspec.Struct, array_like=True, tag=9, frozen=True):
    limits: EngineLimits


class CancelLoad(msgspec.Struct, array_like=True, tag=10, frozen=True):
    pass


class Reclaim(msgspec.Struct, array_like=True, tag=11, frozen=True):
    """Give free buffers back to the system; answered by a Reclaimed."""

    number: int


class BrakeTo(msgspec.Struct, array_like=True, tag=12, frozen=True):
    hold: bool
    slow: bool


class OthersWork(msgspec.Struct, array_like=True, tag=13, frozen=True):
    """How many other engines of the machine are at work."""

    count: int


class MemoryAnswer(msgspec.Struct, array_like=True, tag=14, frozen=True):
    """The answer to a MemoryCall."""

    number: int
    value: int | None
    limit: str = ""


class Call(msgspec.Struct, array_like=True, tag=15, frozen=True):
    """Something for the tokenizer; `arguments` is a JSON list, `files` are paths of images. Answered by a Reply."""

    number: int
    method: str
    arguments: bytes
    files: list[Path] = []


class StopCall(msgspec.Struct, array_like=True, tag=16, frozen=True):
    """Nobody waits for a Call any more."""

    number: int


class Drop(msgspec.Struct, array_like=True, tag=17, frozen=True):
    """What the worker holds under this number is not needed any more."""

    held: int


class LogFrom(msgspec.Struct, array_like=True, tag=18, frozen=True):
    """Log what is of this level or above from now on."""

    level: int


class HoldSteps(msgspec.Struct, array_like=True, tag=19, frozen=True):
    """Begin no step, and say StepsHeld once none runs or `seconds` are over."""

    seconds: float


class FreeSteps(msgspec.Struct, array_like=True, tag=20, frozen=True):
    """Go on."""


ToWorker = (
    Start
    | AddText
    | AddInputs
    | GiveUp
    | EndAll
    | RoomMadeFor
    | MemoryMayBeFree
    | TrimTo
    | RetuneTo
    | CancelLoad
    | Reclaim
    | BrakeTo
    | OthersWork
    | MemoryAnswer
    | Call
    | StopCall
    | Drop
    | LogFrom
    | HoldSteps
    | FreeSteps
)
