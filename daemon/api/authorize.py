"""Asks for an API key: who sends a request, and whether the key's scope is enough for the call."""

from __future__ import annotations

import structlog
from aiohttp import web

from mlxd.daemon.api.caller import CALLER
from mlxd.daemon.api.refusals import Forbidden, InvalidApiKey
from mlxd.daemon.api.routes import Handler, Route, route_of
from mlxd.daemon.api.services import services_of
from mlxd.daemon.key_ring import KeyRing
from mlxd.daemon.keys import ApiKey, Scope

_HOW = "send one as `Authorization: Bearer KEY` or `x-api-key: KEY`"


@web.middleware
async def authorize(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Let a call pass that needs no key, or came with one that is enough for it.

    1. No key was ever made: everything is open, to this machine alone.
    2. A call of the table without a scope is open.
    3. All else needs a key, what is not there too: nobody without one learns more than that, or fills the log.

    Raises InvalidApiKey and Forbidden.
    """
    keys, route = services_of(request).keys, route_of(request)
    if keys.is_open or (route is not None and route.scope is None):
        return await handler(request)
    request[CALLER] = caller = _caller(request, keys)
    structlog.contextvars.bind_contextvars(key=caller.name)  # each request has a context of its own
    if request.match_info.http_exception is None:
        _check(caller, route)
    return await handler(request)


def _caller(request: web.Request, keys: KeyRing) -> ApiKey:
    """The key of a request. It may come in both headers, but it has to be one and the same."""
    sent = set(filter(None, (*_bearers(request), *map(str.strip, request.headers.getall("X-Api-Key", ())))))
    if not sent:
        raise InvalidApiKey(f"this daemon asks for an API key; {_HOW}")
    if len(sent) > 1:
        raise InvalidApiKey("the request has several API keys that differ; send one")
    caller = keys.find(sent.pop())
    if caller is None:
        raise InvalidApiKey("the API key is not one of this daemon's; `mlxd key` on its machine makes and lists them")
    return caller


def _bearers(request: web.Request) -> list[str]:
    found = []
    for header in request.headers.getall("Authorization", ()):
        scheme, _, rest = header.strip().partition(" ")
        if scheme.lower() == "bearer":
            found.append(rest.strip())
    return found


def _check(caller: ApiKey, route: Route | None) -> None:
    needed = Scope.ADMIN if route is None or route.scope is None else route.scope
    if not caller.has(needed):
        raise Forbidden(f"this call needs a key with the scope {needed}; this one has {', '.join(caller.scopes)}")
    if caller.models and needed is not Scope.INFER and not _is_about_models(route):
        raise Forbidden("this call is about the whole daemon; it needs a key for all models")


def _is_about_models(route: Route | None) -> bool:
    return route is not None and (route.about_models or "/{id}" in route.name)
