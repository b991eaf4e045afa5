"""GET /v1/models and /v1/models/{id}: every name that a request may use. Reading loads nothing."""

from __future__ import annotations

from datetime import UTC, datetime

from aiohttp import web

from mlxd.daemon.api.caller import usable_meaning, usable_names
from mlxd.daemon.api.json_answer import json_answer
from mlxd.daemon.api.openai.objects import ModelList, ModelMeta, ModelObject, ModelStatus
from mlxd.daemon.api.routes import Route, Scope
from mlxd.daemon.api.services import Services, services_of
from mlxd.daemon.engine_factory import context_length
from mlxd.registry.names import Resolved
from mlxd.registry.states import State

# In these a model answers, or did until a moment ago.
IN_MEMORY = frozenset({State.READY, State.DRAINING, State.UNLOADING})
COMING = frozenset({State.QUEUED, State.LOADING})


def routes() -> list[Route]:
    """This module's part of the API."""
    return [
        Route("GET", "/v1/models", list_models, Scope.INFER, answer=ModelList),
        Route("GET", "/v1/models/{id:.+}", get_model, Scope.INFER, answer=ModelObject),
    ]


async def list_models(request: web.Request) -> web.Response:
    """All names that the caller may use: models, then aliases, then presets."""
    services = services_of(request)
    names = usable_names(request)
    models = [_model_object(services, name, meaning) for name, meaning in names]
    first, last = (models[0].id, models[-1].id) if models else (None, None)
    return json_answer(ModelList(models, first, last))


async def get_model(request: web.Request) -> web.Response:
    """One name, in any spelling that a request may use. Raises Forbidden, UnknownModel and AmbiguousModel."""
    services = services_of(request)
    name = request.match_info["id"]
    return json_answer(_model_object(services, name, usable_meaning(request, name)))


def _model_object(services: Services, name: str, meaning: Resolved) -> ModelObject:
    model = services.registry.model(meaning.model)
    length = context_length(model.spec, services.settings.engine_for(meaning.model))
    return ModelObject(
        id=name,
        created=int(services.started),
        created_at=datetime.fromtimestamp(int(services.started), UTC),
        display_name=name,
        max_input_tokens=length,
        root=meaning.model,
        preset=meaning.preset,
        kind=model.spec.kind,
        state=model.state,
        context_length=length,
        max_model_len=length,
        weight_bytes=model.spec.weight_bytes,
        aliases=model.spec.aliases,
        status=status_of(model.state),
        meta=ModelMeta(length, model.spec.weight_bytes),
    )


def status_of(state: str) -> ModelStatus:
    """A state in a llama.cpp router's words; the exit code is that of its process that could not load a model."""
    if state in IN_MEMORY:
        return ModelStatus("loaded")
    if state in COMING:
        return ModelStatus("loading")
    return ModelStatus("unloaded", failed=True, exit_code=1) if state == State.FAILED else ModelStatus("unloaded")
