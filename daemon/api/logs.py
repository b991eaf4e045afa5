"""GET /admin/logs: the last lines of the log, or those that come."""

from __future__ import annotations

import logging
from typing import get_args

from aiohttp import web
from msgspec import Struct

from mlxd.daemon.api.admin_objects import Listed
from mlxd.daemon.api.following import follow, since_of
from mlxd.daemon.api.queries import choice_of, count_of
from mlxd.daemon.api.routes import Query, Route, Scope
from mlxd.daemon.api.services import SERVICES, services_of
from mlxd.daemon.settings import LogLevel

DEFAULT_LINES = 100
MAX_LINES = 5000
LEVELS: tuple[LogLevel, ...] = get_args(LogLevel)
FOLLOW = ("false", "true")


class LogEntry(Struct, frozen=True):
    """One line; the fields of its event stand beside these."""

    seq: int
    timestamp: str
    level: str
    event: str


def routes() -> list[Route]:
    """This module's part of the API. HEAD might never end."""
    query = {
        "limit": Query(f"How many of the last lines, up to {MAX_LINES}; {DEFAULT_LINES} unless said."),
        "level": Query("Lines of this level and above.", {"type": "string", "enum": list(LEVELS)}),
        "follow": Query("Stream the lines that come, as events.", {"type": "string", "enum": list(FOLLOW)}),
        "since": Query("With `follow`: the last line that was seen; those after it come first."),
    }
    return [
        Route(
            "GET",
            "/admin/logs",
            logs,
            Scope.READ,
            answer=Listed[LogEntry],
            event=LogEntry,
            query=query,
            allow_head=False,
        )
    ]


async def close_log(application: web.Application) -> None:
    """End all streams; what an application does when it shuts down."""
    application[SERVICES].log_tail.close()


async def logs(request: web.Request) -> web.StreamResponse:
    """The last lines, oldest first; with `follow` those that come, until the client leaves or the daemon stops."""
    tail = services_of(request).log_tail
    limit = count_of(request, "limit", DEFAULT_LINES, MAX_LINES)
    level = logging.getLevelNamesMapping()[choice_of(request, "level", LEVELS).upper()]
    since = since_of(request)
    if choice_of(request, "follow", FOLLOW) == "true":
        with tail.reader(since, level) as reader:
            return await follow(request, reader)
    lines = b", ".join(line.numbered() for line in tail.last(limit, level))
    return web.Response(body=b'{"data": [' + lines + b"]}", content_type="application/json")
