"""GET /admin/keys: who may use the daemon."""

from __future__ import annotations

from datetime import datetime

from aiohttp import web
from msgspec import Struct

from mlxd.daemon.api.admin_objects import Listed
from mlxd.daemon.api.json_answer import json_answer
from mlxd.daemon.api.routes import Route, Scope
from mlxd.daemon.api.services import services_of


class KeyObject(Struct, frozen=True):
    """One key, without what it is found by. `models` are patterns, none for all models."""

    name: str
    scopes: list[Scope]
    models: list[str]
    created: datetime


def routes() -> list[Route]:
    """This module's part of the API."""
    return [Route("GET", "/admin/keys", keys, Scope.READ, answer=Listed[KeyObject])]


async def keys(request: web.Request) -> web.Response:
    """All keys in effect, by name. While there are none, nobody needs one."""
    found = sorted(services_of(request).keys.keys, key=lambda key: key.name)
    return json_answer(Listed([KeyObject(key.name, list(key.scopes), list(key.models), key.created) for key in found]))
