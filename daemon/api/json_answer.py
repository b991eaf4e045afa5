"""An answer in one piece."""

from __future__ import annotations

import msgspec
from aiohttp import web


def json_answer(answer: object, status: int = 200) -> web.Response:
    """A Struct, or whatever else msgspec writes, as JSON."""
    return web.Response(body=msgspec.json.encode(answer), status=status, content_type="application/json")
