"""GET /v1/models and /v1/models/{id}: every name that a request may use. Reading loads nothing."""

from __future__ import annotations

from datetime import UTC, datetime

from aiohttp import web
from msgspec import UNSET, UnsetType

from mlxd.daemon.api.caller import peer_model, peer_names, usable_meaning, usable_names
from mlxd.daemon.api.json_answer import json_answer
from mlxd.daemon.api.openai.objects import ModelArchitecture, ModelList, ModelMeta, ModelObject, ModelStatus
from mlxd.daemon.api.routes import Route, Scope
from mlxd.daemon.api.services import services_of
from mlxd.daemon.engine_factory import context_length
from mlxd.daemon.peers.headers import HOPS, INSTANCE
from mlxd.daemon.peers.listing import PeerModel
from mlxd.daemon.peers.peer import Peer
from mlxd.registry.names import Resolved, UnknownModel
from mlxd.registry.spec import ModelKind, ModelSpec
from mlxd.registry.states import State

# In these a model answers, or did until a moment ago.
IN_MEMORY = frozenset({State.READY, State.DRAINING, State.UNLOADING})
COMING = frozenset({State.QUEUED, State.LOADING})
# What Anthropic's clients send with every call.
_ANTHROPIC = "anthropic-version"


def routes() -> list[Route]:
    """This module's part of the API."""
    return [
        Route("GET", "/v1/models", list_models, Scope.INFER, answer=ModelList),
        Route("GET", "/v1/models/{id:.+}", get_model, Scope.INFER, answer=ModelObject),
    ]


async def list_models(request: web.Request) -> web.Response:
    """All names that the caller may use: models, then aliases, then presets, then those that peers answer to. Another
    daemon is told this one's alone.
    """
    models = [_model_object(request, name, meaning) for name, meaning in usable_names(request)]
    if HOPS not in request.headers:
        models += [_of_peer(request, name, peer, model) for name, peer, model in peer_names(request)]
    first, last = (models[0].id, models[-1].id) if models else (None, None)
    answer = json_answer(ModelList(models, first, last))
    if HOPS in request.headers:
        answer.headers[INSTANCE] = services_of(request).peers.instance
    return answer


async def get_model(request: web.Request) -> web.Response:
    """One name, in any spelling that a request may use. Raises Forbidden, UnknownModel and AmbiguousModel."""
    name = request.match_info["id"]
    try:
        meaning = usable_meaning(request, name)
    except UnknownModel:
        found = peer_model(request, name)
        if found is None:
            raise
        return json_answer(_of_peer(request, name, *found))
    return json_answer(_model_object(request, name, meaning))


def _model_object(request: web.Request, name: str, meaning: Resolved) -> ModelObject:
    services = services_of(request)
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
        waiting=model.waiting,
        context_length=length,
        max_model_len=length,
        weight_bytes=model.spec.weight_bytes,
        aliases=model.spec.aliases,
        status=status_of(model.state),
        meta=ModelMeta(length, model.spec.weight_bytes),
        architecture=_architecture(model.spec),
        capabilities=UNSET if _ANTHROPIC in request.headers else services.live.catalog.capabilities(model.spec),
    )


def _of_peer(request: web.Request, name: str, peer: Peer, model: PeerModel) -> ModelObject:
    started, length = int(services_of(request).started), model.context_length or UNSET
    return ModelObject(
        id=name,
        created=started,
        created_at=datetime.fromtimestamp(started, UTC),
        display_name=name,
        max_input_tokens=length,
        root=model.name,
        preset=None,
        kind=model.kind or UNSET,
        state=model.state,
        waiting=model.waiting,
        context_length=length,
        max_model_len=length,
        weight_bytes=UNSET,
        aliases=(),
        status=status_of(model.state),
        meta=UNSET,
        architecture=UNSET,
        capabilities=UNSET if _ANTHROPIC in request.headers else model.capabilities or UNSET,
        peer=peer.name,
    )


def _architecture(spec: ModelSpec) -> ModelArchitecture | UnsetType:
    if spec.kind is ModelKind.EMBEDDING:
        return UNSET
    return ModelArchitecture(("text", "image") if spec.takes_images else ("text",))


def status_of(state: str) -> ModelStatus:
    """A state in a llama.cpp router's words; the exit code is that of its process that could not load a model."""
    if state in IN_MEMORY:
        return ModelStatus("loaded")
    if state in COMING:
        return ModelStatus("loading")
    return ModelStatus("unloaded", failed=True, exit_code=1) if state == State.FAILED else ModelStatus("unloaded")
