"""Reads the daemon's JSON: errors into failures, objects into typed views."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from mlxd.daemon.cli.failures import ApiFailure, CommandFailed

_View = TypeVar("_View")
_ADVICE = {
    "invalid_api_key": "put a valid key into $MLXD_API_KEY",
    "forbidden": "use a key with a wider scope in $MLXD_API_KEY",
    "host_not_allowed": "add this host to server.allowed_hosts",
}


class ErrorBody(msgspec.Struct, frozen=True):
    """The API's error object."""

    message: str
    code: str | None = None
    param: str | None = None
    details: dict[str, Any] | None = None


class _Refusal(msgspec.Struct, frozen=True):
    error: ErrorBody


def view(answer: Any, kind: type[_View]) -> _View:
    """The answer as a typed view; keys that the view does not know are left out."""
    try:
        return msgspec.convert(answer, kind)
    except msgspec.ValidationError as error:
        raise CommandFailed(f"the daemon's answer is not as expected ({error}); is it another version?") from error


def failure_from(status: int, answer: Any, url: str) -> CommandFailed:
    """The failure for an answer that refuses; `answer` is its JSON."""
    try:
        error = msgspec.convert(answer, _Refusal).error
    except msgspec.ValidationError:
        return CommandFailed(f"{url} answered {status} without saying why; is that mlxd?")
    return ApiFailure(_message(error), status, error.code or "")


def _message(error: ErrorBody) -> str:
    param = error.param if error.param and error.param not in error.message else None
    about = [part for part in (error.code, param) if part]
    lines = [f"{error.message} ({', '.join(about)})" if about else error.message]
    found = (error.details or {}).get("suggestions")
    suggestions = [name for name in found if isinstance(name, str)] if isinstance(found, list) else []
    if suggestions and not any(name in error.message for name in suggestions):
        lines.append(f"did you mean {' or '.join(suggestions)}?")
    if error.code in _ADVICE:
        lines.append(_ADVICE[error.code])
    return "\n".join(lines)


def describe_error(error: Exception) -> str:
    """What an error says, or its kind if it says nothing."""
    return str(error) or type(error).__name__
