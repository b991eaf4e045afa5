"""GET /admin/explain/{id}: what would happen if a request named that model now. Nothing is changed."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from aiohttp import web

from mlxd.daemon.api.caller import may_use, usable_model
from mlxd.daemon.api.peer_ways import Ways
from mlxd.daemon.api.routes import Route, Scope
from mlxd.daemon.api.services import services_of
from mlxd.registry.explain import Plan, Verdict
from mlxd.registry.names import Resolved, UnknownModel
from mlxd.registry.peer_choice import Standing

# What peers are asked about: every server takes it.
CHAT = "/v1/chat/completions"
_HERE = "here"


def routes() -> list[Route]:
    """This module's part of the API."""
    return [Route("GET", "/admin/explain/{id:.+}", explain, Scope.READ, answer=Plan)]


async def explain(request: web.Request) -> web.Response:
    """The plan for a model, by any of its names. Raises Forbidden, UnknownModel and AmbiguousModel."""
    name = request.match_info["id"]
    ways = Ways(request, name, CHAT).now() if services_of(request).peers else []
    order = tuple(_HERE if way.peer is None else way.peer.name for way in ways)
    try:
        model = usable_model(request, name)
    except UnknownModel:
        if not ways:
            raise
        verdict = Verdict.READY if ways[0].option.standing is Standing.READY else Verdict.LOADS
        return web.json_response(plan_object(Plan(name, verdict, 0, 0, order=order)))
    plan = tellable(request, services_of(request).registry.explain(model))
    return web.json_response(plan_object(replace(plan, order=order)))


def tellable(request: web.Request, plan: Plan) -> Plan:
    """The plan without the names of models that the caller may not use."""

    def is_usable(name: str) -> bool:
        return may_use(request, Resolved(name))

    return replace(
        plan,
        evicts=tuple(filter(is_usable, plan.evicts)),
        waits_for=tuple(filter(is_usable, plan.waits_for)),
        blocked_by=tuple(blocker for blocker in plan.blocked_by if is_usable(blocker.id)),
    )


def plan_object(plan: Plan) -> dict[str, Any]:
    """The public shape of a plan, sizes in bytes and times in seconds."""
    return asdict(plan)
