"""POST /admin/reload: read configuration and folders again."""

from __future__ import annotations

from aiohttp import web
from msgspec import Struct, to_builtins

from mlxd.daemon.api.admin_objects import Reloaded
from mlxd.daemon.api.body import convert, read_object
from mlxd.daemon.api.routes import Route, Scope
from mlxd.daemon.api.services import services_of


class ReloadBody(Struct, forbid_unknown_fields=True):
    """With `dry_run` nothing is changed."""

    dry_run: bool | None = False


def routes() -> list[Route]:
    """This module's part of the API."""
    return [Route("POST", "/admin/reload", reload, Scope.ADMIN, body=ReloadBody | None, answer=Reloaded)]


async def reload(request: web.Request) -> web.Response:
    """Apply what changed, and answer the difference. Raises ConfigError and ShuttingDown; nothing is changed then."""
    body = convert(await read_object(request, optional=True), ReloadBody)
    services, dry_run = services_of(request), body.dry_run is True
    diff = await services.reloader.reload("operator", dry_run=dry_run)
    if not dry_run:
        await services.keys.look()
    return web.json_response({"dry_run": dry_run, **to_builtins(diff)})
