"""One table from exceptions to status and code."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from operator import attrgetter
from typing import Any

import msgspec
import structlog
from msgspec import Struct

from mlxd.daemon.api.refusals import (
    ApiError,
    BodyTooLarge,
    Forbidden,
    HostNotAllowed,
    ImagesQueueFull,
    InvalidApiKey,
    InvalidField,
    MethodNotAllowed,
    ModelNotRemovable,
    ModelResident,
    NotFound,
    OriginNotAllowed,
    PeerUnavailable,
    PullNotFound,
    PullsQueueFull,
    RequestNotFound,
    ResponseNotFound,
    TurnedAway,
    UnsupportedCapability,
    UnsupportedMediaType,
)
from mlxd.daemon.config_errors import ConfigError, Problem
from mlxd.engines import errors as engine
from mlxd.registry import errors as registry
from mlxd.registry import names

log = structlog.stdlib.get_logger(__name__)

INVALID = "invalid_request_error"
SERVER = "server_error"
BUSY = "rate_limit_error"
UNAVAILABLE = "service_unavailable_error"
INTERNAL_ERROR = 500

Details = Mapping[str, Any] | None


def _fields(*names: str) -> Callable[[Any], Details]:
    return lambda error: {name: attrgetter(name)(error) for name in names}


def _seconds(count: float) -> Callable[[Any], float]:
    return lambda _: count


@dataclass(frozen=True, slots=True)
class Row:
    """How one kind of exception is answered. `retry_after` gives seconds; `message` replaces the exception's own."""

    status: int
    code: str
    type: str
    details: Callable[[Any], Details] = lambda _: None
    retry_after: Callable[[Any], float] | None = None
    param: str | None = None
    message: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


def _problem(problem: Problem) -> dict[str, Any]:
    return {"message": problem.message, "key": problem.key, "source": problem.source, "line": problem.line}


_SAID = attrgetter("details")
_WAIT = attrgetter("retry_after")
_FINAL = {"x-should-retry": "false"}
_RELOAD = "the model was unloaded under the request; send it again to load the model"
_DEAD = "the model's engine failed repeatedly and was stopped; send the request again to load the model anew"
_CRASHED = "the model's engine crashed or hung while it was at work on this request; the model is loaded again: retry"
_TOO_LONG = Row(400, "context_length_exceeded", INVALID, _fields("prompt_tokens", "max_tokens", "context_length"))
_BUG = Row(INTERNAL_ERROR, "internal_error", SERVER)

TABLE: dict[type[BaseException], Row] = {
    # the edge
    ApiError: Row(400, "invalid_request", INVALID, _SAID),
    InvalidField: Row(400, "invalid_request", INVALID, _SAID),
    UnsupportedCapability: Row(400, "unsupported_capability", INVALID, _SAID),
    ImagesQueueFull: Row(429, "queue_full", BUSY, _SAID, retry_after=_seconds(1)),
    TurnedAway: Row(400, "invalid_request", INVALID, _SAID),
    InvalidApiKey: Row(401, "invalid_api_key", "authentication_error", _SAID, headers={"WWW-Authenticate": "Bearer"}),
    Forbidden: Row(403, "forbidden", "permission_error", _SAID),
    HostNotAllowed: Row(403, "host_not_allowed", "permission_error", _SAID),
    OriginNotAllowed: Row(403, "origin_not_allowed", "permission_error", _SAID),
    NotFound: Row(404, "not_found", INVALID, _SAID),
    RequestNotFound: Row(404, "request_not_found", INVALID, _SAID),
    ResponseNotFound: Row(404, "response_not_found", INVALID, _SAID),
    PullNotFound: Row(404, "pull_not_found", INVALID, _SAID),
    MethodNotAllowed: Row(405, "method_not_allowed", INVALID, _SAID),
    ModelResident: Row(409, "model_resident", INVALID, _SAID),
    ModelNotRemovable: Row(409, "model_not_removable", INVALID, _SAID),
    PullsQueueFull: Row(429, "queue_full", BUSY, _SAID, retry_after=_seconds(60)),
    PeerUnavailable: Row(503, "peer_unavailable", UNAVAILABLE, _SAID, retry_after=_seconds(1)),
    BodyTooLarge: Row(413, "body_too_large", INVALID, _SAID),
    UnsupportedMediaType: Row(415, "unsupported_media_type", INVALID, _SAID),
    ConfigError: Row(400, "invalid_request", INVALID, lambda error: {"problems": list(map(_problem, error.problems))}),
    # names
    names.UnknownModel: Row(404, "model_not_found", INVALID, _fields("suggestions"), param="model"),
    names.AmbiguousModel: Row(
        404, "model_not_found", INVALID, lambda error: {"suggestions": error.candidates}, param="model"
    ),
    # the registry
    registry.RegistryError: _BUG,
    registry.ModelRemoved: Row(404, "model_not_found", INVALID, lambda _: {"suggestions": []}, param="model"),
    registry.ModelNotLoaded: Row(409, "model_not_loaded", INVALID, param="model"),
    registry.LoadNotRunning: Row(409, "load_not_running", INVALID),
    registry.ResidencyQueueFull: Row(429, "queue_full", BUSY, retry_after=_WAIT),
    registry.ModelWaitTimeout: Row(503, "model_wait_timeout", UNAVAILABLE, retry_after=_WAIT),
    registry.ModelLoadFailed: Row(503, "model_load_failed", UNAVAILABLE, lambda error: asdict(error.failure), _WAIT),
    registry.ModelUnloaded: Row(503, "model_unloaded", UNAVAILABLE, retry_after=_seconds(1)),
    registry.ShuttingDown: Row(503, "shutting_down", UNAVAILABLE, retry_after=_seconds(5)),
    registry.ModelTooLarge: Row(
        507, "model_too_large", SERVER, _fields("needed_bytes", "limit_bytes", "limit"), headers=_FINAL
    ),
    # engines
    engine.EngineError: _BUG,
    engine.RequestError: _BUG,
    engine.StepFailed: _BUG,
    engine.ModelOwnershipError: _BUG,
    engine.InvalidRequest: Row(400, "invalid_request", INVALID),
    engine.GuideError: Row(400, "invalid_request", INVALID),
    engine.WrongModelKind: Row(400, "unsupported_capability", INVALID),
    engine.ContextLengthExceeded: _TOO_LONG,
    engine.InputTooLong: _TOO_LONG,
    engine.EngineQueueFull: Row(429, "queue_full", BUSY, retry_after=_seconds(1)),
    engine.TokenizersBusy: Row(429, "queue_full", BUSY, retry_after=_seconds(1)),
    engine.DiskFull: Row(503, "disk_full", UNAVAILABLE, retry_after=_seconds(5)),
    engine.LoadError: Row(
        503,
        "model_load_failed",
        UNAVAILABLE,
        lambda error: {"reason": error.reason, "message": str(error)},
        _seconds(5),
    ),
    engine.EngineClosed: Row(503, "model_unloaded", UNAVAILABLE, retry_after=_seconds(1), message=_RELOAD),
    engine.EngineDead: Row(
        503,
        "model_load_failed",
        UNAVAILABLE,
        lambda _: {"reason": "crashed", "message": _DEAD},
        _seconds(5),
        None,
        _DEAD,
    ),
    engine.EngineCrashed: Row(503, "engine_crashed", UNAVAILABLE, retry_after=_seconds(1), message=_CRASHED),
    engine.FootprintExceeded: Row(
        503, "memory_ceiling", UNAVAILABLE, _fields("footprint_bytes", "ceiling_bytes", "limit"), _seconds(2)
    ),
    engine.AbortedByOperator: Row(
        503, "memory_ceiling", UNAVAILABLE, _fields("footprint_bytes", "ceiling_bytes", "limit"), _seconds(2)
    ),
    engine.MemoryRefusal: _BUG,
    engine.MemoryWaitTimeout: Row(
        503, "model_wait_timeout", UNAVAILABLE, _fields("estimated_bytes", "available_bytes"), _seconds(5)
    ),
    engine.PrefillMemoryExceeded: Row(
        507, "prefill_memory_exceeded", SERVER, _fields("estimated_bytes", "limit_bytes"), headers=_FINAL
    ),
}


class ErrorObject(Struct, frozen=True):
    """What went wrong, and what to do."""

    message: str
    type: str
    code: str
    param: str | None
    details: dict[str, Any] | None


class ErrorEnvelope(Struct, frozen=True):
    """The OpenAI shape of an error."""

    error: ErrorObject


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """An exception as a client is told of it, in no particular wire format."""

    status: int
    code: str
    type: str
    message: str
    param: str | None
    details: Details
    headers: Mapping[str, str]

    def envelope(self) -> bytes:
        """The OpenAI shape, as JSON."""
        details = None if self.details is None else dict(self.details)
        error = ErrorObject(sayable(self.message), self.type, self.code, self.param, details)
        return msgspec.json.encode(ErrorEnvelope(error))


def sayable(text: str) -> str:
    """`text` as UTF-8 can carry it: bytes of a header that are none arrive as lone surrogates."""
    return text.encode("utf-8", "backslashreplace").decode()


def describe(error: Exception, request_id: str) -> ErrorAnswer:
    """Look an exception up in the table; one that is not in it is a bug, and its text stays in the log."""
    row = next((TABLE[kind] for kind in type(error).__mro__ if kind in TABLE), _BUG)
    if row.status == INTERNAL_ERROR:
        message = f"internal error; the log has the cause under request id {request_id}"
    else:
        message = row.message or str(error)
    said = error if isinstance(error, ApiError) else None
    param = error.param if isinstance(error, ApiError | engine.InvalidRequest) else row.param
    headers = {**row.headers, **(said.headers if said is not None else {})}
    if row.retry_after is not None:
        headers["Retry-After"] = str(max(1, math.ceil(row.retry_after(error))))
    return ErrorAnswer(row.status, row.code, row.type, message, param, row.details(error), headers)


def explain(error: Exception, request_id: str) -> ErrorAnswer:
    """`describe`, and log it: a bug with its traceback, a refusal as one line."""
    answer = describe(error, request_id)
    if answer.status == INTERNAL_ERROR:
        log.error("request.failed", error=repr(error), exc_info=error)
    else:
        # those are told in a few lines of their own: a flood must not fill the log
        note = log.debug if isinstance(error, TurnedAway) else log.info
        note("request.refused", status=answer.status, code=answer.code, message=answer.message)
    return answer
