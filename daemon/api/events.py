"""GET /admin/events: the feed as server-sent events."""

from __future__ import annotations

from aiohttp import web

from mlxd.daemon.api.admin_objects import FeedSnapshot
from mlxd.daemon.api.following import follow, since_of
from mlxd.daemon.api.routes import Query, Route, Scope
from mlxd.daemon.api.services import SERVICES, services_of


def routes() -> list[Route]:
    """This module's part of the API. HEAD would never end."""
    return [
        Route(
            "GET",
            "/admin/events",
            events,
            Scope.READ,
            event=FeedSnapshot,
            query={"since": Query("The last event that was seen; the next ones follow, without a snapshot.")},
            allow_head=False,
        )
    ]


async def close_feed(application: web.Application) -> None:
    """End all streams; what an application does when it shuts down."""
    application[SERVICES].feed.close()


async def events(request: web.Request) -> web.StreamResponse:
    """A snapshot, then every change, until the client leaves, its key is taken away, or the daemon stops."""
    with services_of(request).feed.reader(since_of(request)) as reader:
        return await follow(request, reader)
