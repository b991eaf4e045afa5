"""What a part of the API says of each of its calls: the handler, who may call it, and the shapes that go in and out."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from mlxd.daemon.keys import Scope

__all__ = ["ROUTES", "Handler", "Query", "Route", "Routes", "Scope", "route_of"]

_PATTERN = re.compile(r"\{(\w+):[^{}]+\}")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Query:
    """What a parameter of the query means, and the JSON Schema of its values."""

    meaning: str
    schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "integer"})


@dataclass(frozen=True, slots=True)
class Route:
    """One call. `scope` None is open to everybody.

    `body`, `answer` and `event` (one of a stream's) are types that msgspec makes a JSON Schema of, or unions of such; a
    body that may be None may be left out. `also` has the answers of other statuses than 200 that are no errors, and
    `example` is a body that is taken. `query` has the parameters of the query.
    What is `about_models` names them in its body or lists them, and holds itself to those that the caller may use.
    """

    method: str
    path: str
    handler: Handler
    scope: Scope | None
    body: Any = None
    answer: Any = None
    event: Any = None
    also: Mapping[int, Any] = field(default_factory=dict)
    answer_type: str = "application/json"
    event_type: str = "text/event-stream"
    example: Mapping[str, Any] | None = None
    query: Mapping[str, Query] = field(default_factory=dict)
    allow_head: bool = True
    about_models: bool = False

    @property
    def name(self) -> str:
        """The path as aiohttp calls it: variables without their patterns."""
        return _PATTERN.sub(r"{\1}", self.path)

    def definition(self) -> web.RouteDef:
        """The route for aiohttp; what is read may be asked for its head alone."""
        if self.method == "GET":
            return web.get(self.path, self.handler, allow_head=self.allow_head)
        return web.route(self.method, self.path, self.handler)


Routes = Mapping[tuple[str, str], Route]
ROUTES = web.AppKey("routes", dict[tuple[str, str], Route])


def route_of(request: web.Request) -> Route | None:
    """The call that a request is; None where there is nothing at its path."""
    resource = request.match_info.route.resource
    if resource is None:
        return None
    method = "GET" if request.method == "HEAD" else request.method
    return request.app[ROUTES].get((method, resource.canonical))
