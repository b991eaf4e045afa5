"""Who sends a request: the API key that it came with, if keys are asked for."""

from __future__ import annotations

from aiohttp import web

KEY = web.RequestKey("key", str)


def key_of(request: web.Request) -> str | None:
    """The name of the key that a request came with; None where none is asked for."""
    return request.get(KEY)
