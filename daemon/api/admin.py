"""The admin API over models, requests and memory. Reading never loads a model or touches its idle clock."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web
from msgspec import UNSET, Struct, UnsetType, to_builtins

from mlxd.daemon.api.admin_objects import (
    Aborted,
    Cancelled,
    DecisionObject,
    Freed,
    Listed,
    MemoryStatus,
    ModelStatus,
    RemovedModel,
    UnloadedModel,
)
from mlxd.daemon.api.body import convert, read_object
from mlxd.daemon.api.caller import may_use, usable_model
from mlxd.daemon.api.explain import plan_object, tellable
from mlxd.daemon.api.model_object import decision_object, memory_now, model_now
from mlxd.daemon.api.queries import count_of
from mlxd.daemon.api.refusals import InvalidField
from mlxd.daemon.api.requests import cancel
from mlxd.daemon.api.routes import Query, Route, Scope
from mlxd.daemon.api.running import RequestView
from mlxd.daemon.api.services import services_of
from mlxd.daemon.config import to_public
from mlxd.daemon.units import parse_duration
from mlxd.engines.errors import AbortedByOperator
from mlxd.registry.errors import ModelRemoved
from mlxd.registry.explain import Plan
from mlxd.registry.names import Resolved
from mlxd.registry.registry import UNSET as KEPT
from mlxd.registry.registry import ModelRegistry, Unset
from mlxd.registry.states import RESIDENT

DEFAULT_DECISIONS = 100
MAX_DECISIONS = 1000


class LoadBody(Struct, forbid_unknown_fields=True):
    """POST …/load. A `ttl` is a duration, null or "never" for none."""

    pin: bool | None = None
    ttl: float | int | str | UnsetType | None = UNSET
    wait: bool | None = True
    dry_run: bool | None = False


class UnloadBody(Struct, forbid_unknown_fields=True):
    """POST …/unload; `timeout` bounds a drain."""

    mode: str | None = "drain"
    timeout: float | int | str | None = None


class PolicyBody(Struct, forbid_unknown_fields=True):
    """PATCH of a model."""

    pinned: bool | None = None
    ttl: float | int | str | UnsetType | None = UNSET


class NoFields(Struct, forbid_unknown_fields=True):
    """POST of a call about everything; a field would mean that the caller wants less."""


def routes() -> list[Route]:
    """This module's part of the API. Ids may hold slashes, so the longer paths come first."""
    return [
        Route("GET", "/admin/models", list_models, Scope.READ, answer=Listed[ModelStatus], about_models=True),
        Route(
            "POST",
            "/admin/models/{id:.+}/load",
            load,
            Scope.ADMIN,
            body=LoadBody | None,
            answer=ModelStatus | Plan,
            also={202: ModelStatus},
        ),
        Route("DELETE", "/admin/models/{id:.+}/load", cancel_load, Scope.ADMIN, answer=ModelStatus),
        Route(
            "POST",
            "/admin/models/{id:.+}/unload",
            unload,
            Scope.ADMIN,
            body=UnloadBody | None,
            answer=UnloadedModel | RemovedModel,
        ),
        Route("GET", "/admin/models/{id:.+}", get_model, Scope.READ, answer=ModelStatus),
        Route(
            "PATCH",
            "/admin/models/{id:.+}",
            change_model,
            Scope.ADMIN,
            body=PolicyBody,
            answer=ModelStatus,
            example={"pinned": True, "ttl": "10m"},
        ),
        Route("POST", "/admin/unload", unload_all, Scope.ADMIN, body=NoFields | None, answer=Listed[Freed]),
        Route("GET", "/admin/requests", list_requests, Scope.READ, answer=Listed[RequestView]),
        Route("DELETE", "/admin/requests/{request_id}", cancel, Scope.ADMIN, answer=Cancelled),
        Route("GET", "/admin/memory", memory, Scope.READ, answer=MemoryStatus),
        Route(
            "GET",
            "/admin/decisions",
            decisions,
            Scope.READ,
            answer=Listed[DecisionObject],
            query={"limit": Query("How many of the last ones.")},
        ),
        Route("POST", "/admin/abort", abort, Scope.ADMIN, body=NoFields | None, answer=Aborted),
        Route("GET", "/admin/config", config, Scope.READ, answer=dict[str, Any]),
    ]


async def list_models(request: web.Request) -> web.Response:
    """All known models that the caller may use."""
    services = services_of(request)
    models = [model for model in services.registry.models() if may_use(request, Resolved(model.spec.name))]
    return web.json_response({"data": [model_now(services, model) for model in models]})


async def get_model(request: web.Request) -> web.Response:
    """One model, by any of its names."""
    services = services_of(request)
    return web.json_response(model_now(services, services.registry.model(_model(request))))


async def load(request: web.Request) -> web.Response:
    """Load a model: 200 when it is ready, 202 when it was not waited for. A dry run only tells the plan, with 200."""
    services, name = services_of(request), _model(request)
    body = convert(await read_object(request, optional=True), LoadBody)
    ttl = _ttl(body.ttl)
    if body.dry_run:
        return web.json_response(plan_object(tellable(request, services.registry.explain(name, operator=True))))
    wait = body.wait is not False
    model = await services.registry.load(name, pinned=body.pin, ttl=ttl, wait=wait)
    return web.json_response(model_now(services, model), status=200 if model.state == "ready" else 202)


async def cancel_load(request: web.Request) -> web.Response:
    """Stop a load in progress. Raises LoadNotRunning."""
    services, name = services_of(request), _model(request)
    services.registry.cancel_load(name)
    return web.json_response(model_now(services, services.registry.model(name)))


async def unload(request: web.Request) -> web.Response:
    """Unload a model; 200 when it is gone, also when it was not there."""
    services, name = services_of(request), _model(request)
    body = convert(await read_object(request, optional=True), UnloadBody)
    if body.mode not in (None, "drain", "force"):
        raise InvalidField('expected "drain" or "force"', "mode")
    timeout = None if body.timeout is None else _seconds(body.timeout, "timeout")
    result = await services.registry.unload(name, force=body.mode == "force", timeout=timeout)
    try:
        model = model_now(services, services.registry.model(name))
    except ModelRemoved:  # by a reload, while it drained
        return web.json_response({"id": name, "removed": True, "freed_bytes": result.freed_bytes})
    return web.json_response({**model, "freed_bytes": result.freed_bytes})


async def change_model(request: web.Request) -> web.Response:
    """Pin or unpin a model, or change its time to live; both apply at once."""
    services, name = services_of(request), _model(request)
    body = convert(await read_object(request), PolicyBody)
    model = services.registry.set_policy(name, pinned=body.pinned, ttl=_ttl(body.ttl))
    return web.json_response(model_now(services, model))


async def unload_all(request: web.Request) -> web.Response:
    """Unload every model that is not pinned; they drain at the same time."""
    registry = services_of(request).registry
    convert(await read_object(request, optional=True), NoFields)
    resident = [model.spec.name for model in registry.models() if model.state in RESIDENT and not model.pinned]
    freed = await asyncio.gather(*[_unload(registry, name) for name in resident])
    data = [{"id": name, "freed_bytes": count} for name, count in zip(resident, freed, strict=True)]
    return web.json_response({"data": data})


async def list_requests(request: web.Request) -> web.Response:
    """Every request that is being answered."""
    services = services_of(request)
    views = services.running.views(services.registry.waiting())
    return web.json_response({"data": to_builtins(views)})


async def memory(request: web.Request) -> web.Response:
    """The footprint, its parts and the limits, as of the last sample."""
    return web.json_response(memory_now(services_of(request)))


async def decisions(request: web.Request) -> web.Response:
    """The last decisions, oldest first."""
    limit = count_of(request, "limit", DEFAULT_DECISIONS, MAX_DECISIONS)
    data = [decision_object(decision) for decision in services_of(request).registry.last_decisions(limit)]
    return web.json_response({"data": data})


async def abort(request: web.Request) -> web.Response:
    """Abort every request now, as the guard does at the ceiling."""
    services = services_of(request)
    convert(await read_object(request, optional=True), NoFields)
    footprint, limits = services.guard.reading().footprint, services.guard.limits
    error = AbortedByOperator(footprint.bytes, limits.ceiling_bytes, limits.limit)
    inputs = {"footprint_bytes": footprint.bytes, "ceiling_bytes": limits.ceiling_bytes}
    return web.json_response({"aborted": services.registry.abort_all(error, "operator", inputs)})


async def config(request: web.Request) -> web.Response:
    """The effective configuration, and where each value comes from."""
    live = services_of(request).live
    return web.json_response({**to_public(live.settings), "origins": dict(live.origins)})


async def _unload(registry: ModelRegistry, name: str) -> int:
    """The bytes that an unload gave back; none when a reload removed the model first."""
    try:
        return (await registry.unload(name)).freed_bytes
    except ModelRemoved:
        return 0


def _model(request: web.Request) -> str:
    """The model that the path names. Raises Forbidden, UnknownModel and AmbiguousModel."""
    return usable_model(request, request.match_info["id"])


def _ttl(value: float | int | str | UnsetType | None) -> float | Unset | None:
    if isinstance(value, UnsetType):
        return KEPT
    return None if value is None else _duration(value, "ttl")


def _seconds(value: float | int | str, param: str) -> float:
    seconds = _duration(value, param)
    if seconds is None:
        raise InvalidField('expected a duration that ends, not "never"', param)
    return seconds


def _duration(value: float | int | str, param: str) -> float | None:
    try:
        return parse_duration(value)
    except ValueError as error:
        raise InvalidField(str(error), param) from None
