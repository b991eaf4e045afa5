"""Errors as Ollama clients read them: `error` is the message."""

from __future__ import annotations

import msgspec

from mlxd.daemon.api.error_shapes import ErrorShape
from mlxd.daemon.api.errors import ErrorAnswer, sayable
from mlxd.daemon.api.ollama.objects import ErrorBody


def error_body(answer: ErrorAnswer) -> bytes:
    """An error as JSON."""
    details = None if answer.details is None else dict(answer.details)
    return msgspec.json.encode(ErrorBody(sayable(answer.message), answer.code, answer.param, details))


SHAPE = ErrorShape("/api", lambda answer, _: error_body(answer), ErrorBody, lambda body: body + b"\n")
