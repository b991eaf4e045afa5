"""Which shape errors have where: each facade has its own below its paths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aiohttp import web

from mlxd.daemon.api.errors import ErrorAnswer, ErrorEnvelope, explain


@dataclass(frozen=True, slots=True)
class ErrorShape:
    """How the calls below `prefix` say what went wrong: `body` makes JSON of an answer and a request id, `framed` the
    last event of a stream of such JSON.

    `kind` is the type of what `body` makes.
    """

    prefix: str
    body: Callable[[ErrorAnswer, str], bytes]
    kind: type
    framed: Callable[[bytes], bytes] = lambda body: b"data: " + body + b"\n\n"


def openai_body(answer: ErrorAnswer, _: str) -> bytes:
    """The shape that holds where no facade has its own."""
    return answer.envelope()


SHAPES = web.AppKey("error_shapes", tuple[ErrorShape, ...])
DEFAULT = ErrorShape("", openai_body, ErrorEnvelope)


def shape_of(request: web.Request) -> ErrorShape:
    """The shape for the path of a request."""
    shapes = request.app[SHAPES]
    return shape_at(request.path, shapes)


def shape_at(path: str, shapes: Sequence[ErrorShape]) -> ErrorShape:
    """The first of `shapes` that holds for a path, else the default."""
    return next((shape for shape in shapes if _is_below(path, shape.prefix)), DEFAULT)


def to_response(error: Exception, request_id: str) -> web.Response:
    """The answer to a request that failed before it was known what it asks for; what it was is logged."""
    return shaped(explain(error, request_id), request_id, DEFAULT)


def shaped(answer: ErrorAnswer, request_id: str, shape: ErrorShape) -> web.Response:
    """The answer to a request that failed before its first byte."""
    return web.Response(
        status=answer.status,
        body=shape.body(answer, request_id),
        content_type="application/json",
        headers=answer.headers,
    )


def _is_below(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(f"{prefix}/")
