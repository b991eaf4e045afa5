"""Errors as Anthropic clients read them, and the header by which they name a request."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from aiohttp import web

from mlxd.daemon.api.anthropic.objects import FailureAnswer, FailureObject
from mlxd.daemon.api.error_shapes import ErrorShape
from mlxd.daemon.api.errors import ErrorAnswer, sayable
from mlxd.daemon.api.middleware import request_id_of

PREFIX = "/v1/messages"
REQUEST_ID_HEADER = "request-id"

# Types by status, and by code where a code has one of its own.
TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    507: "api_error",
}
TYPES_BY_CODE: Mapping[str, str] = {"model_wait_timeout": "timeout_error"}
OTHERS = "invalid_request_error"


def failure(answer: ErrorAnswer, request_id: str) -> FailureAnswer:
    """What an error answer or event holds."""
    kind = TYPES_BY_CODE.get(answer.code) or TYPES.get(answer.status, OTHERS)
    details = None if answer.details is None else dict(answer.details)
    shown = FailureObject(kind, sayable(_message(answer)), answer.code, answer.param, details)
    return FailureAnswer(shown, request_id)


def failure_body(answer: ErrorAnswer, request_id: str) -> bytes:
    """The same as JSON."""
    return msgspec.json.encode(failure(answer, request_id))


ERRORS = ErrorShape(PREFIX, failure_body, FailureAnswer, lambda body: b"event: error\ndata: " + body + b"\n\n")


async def add_request_id(request: web.Request, response: web.StreamResponse) -> None:
    """Name the request where Anthropic's clients look for it."""
    if request.path.startswith(PREFIX) or "anthropic-version" in request.headers:
        response.headers[REQUEST_ID_HEADER] = request_id_of(request)


def _message(answer: ErrorAnswer) -> str:
    """Clients read these two sentences: they ask for fewer tokens, or shorten their history, and try again."""
    if answer.code != "context_length_exceeded" or answer.details is None:
        return answer.message
    prompt, asked, limit = (answer.details[name] for name in ("prompt_tokens", "max_tokens", "context_length"))
    if prompt >= limit:
        return f"prompt is too long: {prompt} tokens > {limit} maximum"
    return (
        f"input length and `max_tokens` exceed context limit: {prompt} + {asked} > {limit}, "
        "decrease input length or `max_tokens` and try again"
    )
