"""GET /v1/models and /v1/models/{id}: every name that a request may use. Reading loads nothing."""

from __future__ import annotations

import msgspec
from aiohttp import web

from mlxd.daemon.api.openai.objects import ModelList, ModelObject
from mlxd.daemon.api.routes import Route, Scope
from mlxd.daemon.api.services import Services, services_of
from mlxd.daemon.engine_factory import context_length
from mlxd.registry.names import Resolved


def routes() -> list[Route]:
    """This module's part of the API."""
    return [
        Route("GET", "/v1/models", list_models, Scope.INFER, answer=ModelList),
        Route("GET", "/v1/models/{id:.+}", get_model, Scope.INFER, answer=ModelObject),
    ]


async def list_models(request: web.Request) -> web.Response:
    """All names: models, then aliases, then presets."""
    services = services_of(request)
    names = services.names.exact.items()
    return _json(ModelList([_model_object(services, name, meaning) for name, meaning in names]))


async def get_model(request: web.Request) -> web.Response:
    """One name, in any spelling that a request may use. Raises UnknownModel and AmbiguousModel."""
    services = services_of(request)
    name = request.match_info["id"]
    return _json(_model_object(services, name, services.names.resolve(name, "")))


def _model_object(services: Services, name: str, meaning: Resolved) -> ModelObject:
    model = services.registry.model(meaning.model)
    length = context_length(model.spec, services.settings.engine_for(meaning.model))
    return ModelObject(
        id=name,
        created=int(services.started),
        root=meaning.model,
        preset=meaning.preset,
        kind=model.spec.kind,
        state=model.state,
        context_length=length,
        max_model_len=length,
        weight_bytes=model.spec.weight_bytes,
        aliases=model.spec.aliases,
    )


def _json(answer: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(answer), content_type="application/json")
