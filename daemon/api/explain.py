"""GET /admin/explain/{id}: what would happen if a request named that model now. Nothing is changed."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from aiohttp import web

from mlxd.daemon.api.routes import Route, Scope
from mlxd.daemon.api.services import services_of
from mlxd.registry.explain import Plan


def routes() -> list[Route]:
    """This module's part of the API."""
    return [Route("GET", "/admin/explain/{id:.+}", explain, Scope.READ)]


async def explain(request: web.Request) -> web.Response:
    """The plan for a model, by any of its names. Raises UnknownModel and AmbiguousModel."""
    services = services_of(request)
    model = services.names.resolve(request.match_info["id"], "").model
    return web.json_response(plan_object(services.registry.explain(model)))


def plan_object(plan: Plan) -> dict[str, Any]:
    """The public shape of a plan, sizes in bytes and times in seconds."""
    return asdict(plan)
