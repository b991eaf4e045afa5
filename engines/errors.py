"""Engine errors, by whose fault it is and whether the engine goes on.

EngineError
├── RequestError               one request ends, the engine goes on
│   ├── InvalidRequest         the caller's fault
│   │   ├── ContextLengthExceeded
│   │   │   └── InputTooLong   one of several inputs
│   │   ├── WrongModelKind     text of an embedding model, or the other way round
│   │   └── GuideError         the answer cannot keep to its form any more
│   ├── EngineQueueFull        try again later
│   │   └── TokenizersBusy     before the engine, where prompts become tokens
│   ├── MemoryRefusal          there is no memory for this request
│   │   ├── PrefillMemoryExceeded  it never fits
│   │   └── MemoryWaitTimeout      it would fit, but no memory came free in time
│   ├── FootprintExceeded      the memory guard aborted everything
│   │   └── AbortedByOperator  somebody did by hand
│   └── StepFailed             a step raised; the running rows were lost
├── LoadError                  the model could not be loaded; carries a reason
├── EngineClosed               the engine is closing or closed
├── EngineDead                 the engine failed and must be loaded again
│   └── EngineCrashed          its process died, or it hung and was given up
└── ModelOwnershipError        a bug: a second engine for one model
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Self


class EngineError(Exception):
    """Base of all errors that leave an engine."""


class RequestError(EngineError):
    """One request ends; the engine and its other requests go on."""


class InvalidRequest(RequestError):
    """The caller's input is wrong; `param` names the field."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ContextLengthExceeded(InvalidRequest):
    """Prompt and `max_tokens` do not fit in the context; all three counted in tokens.

    Clients know this error, and cut their history, by the first words of its message.
    """

    def __init__(self, prompt_tokens: int, max_tokens: int, context_length: int) -> None:
        super().__init__(
            f"this model's maximum context length is {context_length} tokens, but the prompt has {prompt_tokens} and "
            f"max_tokens asks for {max_tokens} more; shorten the prompt or lower max_tokens",
            "messages",
        )
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens
        self.context_length = context_length


class InputTooLong(ContextLengthExceeded):
    """The input of this number (from 0) has more tokens than the model takes; nothing is generated after it."""

    def __init__(self, number: int, tokens: int, limit: int) -> None:
        super().__init__(tokens, 0, limit)
        self.number = number
        self.at("input")

    def at(self, param: str) -> Self:
        """Name the field that holds the input; the error itself."""
        tokens, limit = self.prompt_tokens, self.context_length
        self.args = (f"{param}: it has {tokens} tokens, but the model takes at most {limit}; shorten it",)
        self.param = param
        return self


class WrongModelKind(InvalidRequest):
    """The model is of another kind than the request."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "model")


class GuideError(InvalidRequest):
    """A row cannot follow its guide any more; the message says why."""

    def __str__(self) -> str:
        return f"the answer could not be kept to its form: {super().__str__()}; simplify the form"


class EngineQueueFull(RequestError):
    """The engine already holds as many waiting requests as it may."""

    def __init__(self, waiting: int, limit: int) -> None:
        super().__init__(f"{waiting} requests already wait for this model (limit {limit}); retry later")
        self.waiting = waiting
        self.limit = limit


class TokenizersBusy(EngineQueueFull):
    """No thread was free for a prompt's template and tokens, or for its form, within `seconds`."""

    def __init__(self, model: str, seconds: float) -> None:
        RequestError.__init__(
            self, f"the prompts and forms of other requests to {model} took all of {seconds:g} s; retry later"
        )
        self.waiting = self.limit = 0


class DiskFull(RequestError):
    """What a request needs on disk could not be written there."""

    def __init__(self, folder: str, why: str) -> None:
        super().__init__(f"images are handed to the model through {folder}, which takes none: {why}; mend it and retry")


class MemoryRefusal(RequestError):
    """There is no memory for this request: what it is estimated to need, and what it could have. Bytes.

    `why` is the reason of the decision.
    """

    why = "memory"

    def __init__(self, message: str, request_id: str, estimated_bytes: int, available_bytes: int) -> None:
        super().__init__(message)
        self.request_id = request_id
        self.estimated_bytes = estimated_bytes
        self.available_bytes = available_bytes


class PrefillMemoryExceeded(MemoryRefusal):
    """This prompt needs more memory than can ever be freed for it; bytes. `limit` names what bounds them."""

    why = "prefill_memory_exceeded"

    def __init__(self, request_id: str, estimated_bytes: int, limit_bytes: int, limit: str = "") -> None:
        bound = f" ({limit})" if limit else ""
        super().__init__(
            f"the prompt needs about {estimated_bytes} bytes of memory but at most {limit_bytes} can be made "
            f"available{bound}; shorten the prompt or raise memory.ceiling",
            request_id,
            estimated_bytes,
            limit_bytes,
        )
        self.limit_bytes = limit_bytes


class MemoryWaitTimeout(MemoryRefusal):
    """Nothing that ran gave enough memory back for this prompt within `waited` seconds; bytes."""

    why = "memory_wait_timeout"

    def __init__(self, request_id: str, estimated_bytes: int, available_bytes: int, waited: float) -> None:
        super().__init__(
            f"the prompt needs about {estimated_bytes} bytes of memory, and after {waited:.1f} s of other requests "
            f"only {max(0, available_bytes)} were free; retry later",
            request_id,
            estimated_bytes,
            available_bytes,
        )
        self.waited = waited


class FootprintExceeded(RequestError):
    """All requests were aborted because the footprint passed the ceiling; bytes."""

    def __init__(self, footprint_bytes: int, ceiling_bytes: int, limit: str) -> None:
        super().__init__(
            f"memory footprint {footprint_bytes} bytes passed the ceiling of {ceiling_bytes} ({limit}); "
            "all requests were aborted; retry in a moment"
        )
        self.footprint_bytes = footprint_bytes
        self.ceiling_bytes = ceiling_bytes
        self.limit = limit


class AbortedByOperator(FootprintExceeded):
    """All requests were aborted by hand, as the guard would; bytes."""

    def __str__(self) -> str:
        return "an operator aborted all requests; retry in a moment"


class StepFailed(RequestError):
    """A step raised while this request was running; the cause is chained."""


class LoadFailure(enum.StrEnum):
    """Why a load failed; the public `error.reason`."""

    NOT_FOUND = "not_found"
    BAD_FILES = "bad_files"
    UNSUPPORTED = "unsupported"
    OUT_OF_MEMORY = "out_of_memory"
    STALLED = "stalled"
    CRASHED = "crashed"
    CANCELLED = "cancelled"
    INTERNAL = "internal"


class LoadError(EngineError):
    """The model could not be loaded; `reason` says which kind of failure it was."""

    def __init__(self, reason: LoadFailure, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class EngineClosed(EngineError):
    """The engine is closing or closed: its model is being unloaded."""


class EngineDead(EngineError):
    """The engine gave up after repeated failures, its process died, or it was given up; the model must be loaded again.

    `facts` are what is known of the end, `suspects` the fingerprints of the requests that it was at work on then.
    """

    def __init__(
        self, message: str, *, facts: Mapping[str, object] | None = None, suspects: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message)
        self.facts = dict(facts or {})
        self.suspects = suspects


class EngineCrashed(EngineDead):
    """The engine's process died, or it was stuck and given up."""


class ModelOwnershipError(EngineError):
    """A model entry already has an engine; a second one is a bug in the caller."""
