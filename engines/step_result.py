"""What one step of an engine has for the event loop."""

from __future__ import annotations

from dataclasses import dataclass, field

from mlxd.engines.embedding_types import EmbeddingOutput, EmbeddingRequest
from mlxd.engines.errors import EngineDead, RequestError, StepFailed
from mlxd.engines.sequence import Sequence
from mlxd.engines.types import PrefillEvictionRequest, Request, RequestOutput

Delivery = tuple[Request | EmbeddingRequest, RequestOutput | EmbeddingOutput | Exception]


@dataclass(slots=True)
class StepResult:
    """What one step has for the event loop, in order; `dead` ends the engine.

    `freed` is, for each request that was given up, the seconds from that until its slot and KV were free.
    """

    deliveries: list[Delivery] = field(default_factory=list)
    eviction: PrefillEvictionRequest | None = None
    dead: EngineDead | None = None
    freed: tuple[float, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.deliveries or self.freed) or self.eviction is not None or self.dead is not None


def last_output(sequence: Sequence) -> RequestOutput | Exception:
    """What the reader of a sequence that is cancelled on purpose gets."""
    try:
        return sequence.cancel()
    # A detokenizer that cannot end its text concerns this request alone.
    except Exception as error:  # noqa: BLE001
        return failed(error)


def failed(error: Exception) -> RequestError:
    """What went wrong with one request, as its reader is told."""
    if isinstance(error, RequestError):
        return error
    failure = StepFailed(f"generation failed: {type(error).__name__}: {error}")
    failure.__cause__ = error.with_traceback(None)  # frames of a failed step hold the batch's arrays
    return failure
