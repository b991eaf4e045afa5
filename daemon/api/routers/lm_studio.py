"""LM Studio's calls about models: GET /api/v1/models, POST /api/v1/models/load and POST /api/v1/models/unload."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

from aiohttp import web
from msgspec import UNSET, Meta, Struct, UnsetType

from mlxd.daemon.api.body import convert, read_object
from mlxd.daemon.api.caller import usable_meaning, usable_model, usable_names
from mlxd.daemon.api.capabilities import template_capabilities
from mlxd.daemon.api.fields import FieldTable
from mlxd.daemon.api.folders import FOLDERS, FolderFacts
from mlxd.daemon.api.json_answer import json_answer
from mlxd.daemon.api.middleware import note_ignored
from mlxd.daemon.api.openai.models import IN_MEMORY
from mlxd.daemon.api.refusals import InvalidField
from mlxd.daemon.api.routes import Route, Scope
from mlxd.daemon.api.services import Services, services_of
from mlxd.daemon.api.unloading import unload
from mlxd.daemon.engine_factory import context_length
from mlxd.registry.snapshot import ModelSnapshot
from mlxd.registry.spec import ModelKind, ModelSpec

Kind = Literal["llm", "embedding"]
Name = Annotated[str, Meta(min_length=1)]
Positive = Annotated[int, Meta(ge=1)]


class InstanceConfig(Struct, frozen=True):
    """How a loaded model is set up, in tokens."""

    context_length: int


class Instance(Struct, frozen=True):
    """A model in memory, by the name that unloads it."""

    id: str
    config: InstanceConfig


class Quantization(Struct, frozen=True):
    """How weights are stored, and bits of each with its share of what is stored beside them."""

    name: str
    bits_per_weight: float


class Capabilities(Struct, frozen=True):
    """What a model can do."""

    trained_for_tool_use: bool
    vision: bool


class Model(Struct, frozen=True, kw_only=True):
    """One name in GET /api/v1/models; sizes in bytes, lengths in tokens. What is not known is null."""

    type: Kind
    publisher: str
    key: str
    display_name: str
    size_bytes: int
    loaded_instances: list[Instance]
    max_context_length: int
    architecture: str | None
    quantization: Quantization | None
    capabilities: Capabilities | UnsetType = UNSET
    format: str = "mlx"
    params_string: None = None
    description: None = None


class Models(Struct, frozen=True):
    """Every name."""

    models: list[Model]


class LoadBody(Struct, frozen=True, kw_only=True):
    """POST /api/v1/models/load; null means the default."""

    model: Name
    context_length: Positive | None = None
    echo_load_config: bool | None = None
    eval_batch_size: Positive | None = None
    flash_attention: bool | None = None
    num_experts: Positive | None = None
    offload_kv_cache_to_gpu: bool | None = None


class Loaded(Struct, frozen=True, kw_only=True):
    """A model that is ready."""

    type: Kind
    instance_id: str
    load_time_seconds: float
    status: str = "loaded"
    load_config: InstanceConfig | UnsetType = UNSET


class InstanceName(Struct, frozen=True, forbid_unknown_fields=True):
    """POST /api/v1/models/unload."""

    instance_id: Name


class Unloaded(Struct, frozen=True):
    """What was unloaded."""

    instance_id: str


# By LM Studio's own word these have an effect on its llama.cpp engine alone.
LOAD = FieldTable(
    LoadBody.__struct_fields__,
    frozenset({"eval_batch_size", "flash_attention", "num_experts", "offload_kv_cache_to_gpu"}),
)


def routes() -> list[Route]:
    """This module's part of the API."""
    return [
        Route("GET", "/api/v1/models", list_models, Scope.INFER, answer=Models),
        Route(
            "POST",
            "/api/v1/models/load",
            load_model,
            Scope.ADMIN,
            about_models=True,
            body=LoadBody,
            answer=Loaded,
            example={"model": "qwen", "context_length": 4096},
        ),
        Route(
            "POST",
            "/api/v1/models/unload",
            unload_model,
            Scope.ADMIN,
            about_models=True,
            body=InstanceName,
            answer=Unloaded,
            example={"instance_id": "qwen"},
        ),
    ]


async def list_models(request: web.Request) -> web.Response:
    """All names that the caller may use. Reading loads nothing."""
    services, names = services_of(request), [*usable_names(request)]
    models = {meaning.model: services.registry.model(meaning.model) for _, meaning in names}
    facts = await request.app[FOLDERS].facts_of(model.spec for model in models.values())

    def listed() -> Models:
        lengths = {name: _context_of(services, model.spec) for name, model in models.items()}
        return Models(
            [
                _model(name, models[meaning.model], lengths[meaning.model], facts[meaning.model])
                for name, meaning in names
            ]
        )

    # beside the event loop: there may be a thousand
    return json_answer(await asyncio.to_thread(listed))


async def load_model(request: web.Request) -> web.Response:
    """Load a model and wait until it is ready; one that is ready already stays as it is.

    Raises InvalidField, Forbidden, UnknownModel, AmbiguousModel and what keeps a model from being loaded.
    """
    services, raw = services_of(request), await read_object(request)
    LOAD.check(raw)
    body = convert(raw, LoadBody)
    note_ignored(request, LOAD.passed_over(raw))
    model = usable_model(request, body.model)
    shown = usable_meaning(request, body.model).shown
    config = InstanceConfig(_context_of(services, services.registry.spec(model)))
    if body.context_length is not None and body.context_length > config.context_length:
        message = (
            f"context_length: {shown} has {config.context_length} tokens, of which each request takes what it needs"
        )
        raise InvalidField(message, "context_length")
    ready = await services.registry.load(model)
    return json_answer(
        Loaded(
            type=_kind(ready.spec.kind),
            instance_id=shown,
            load_time_seconds=round(ready.load_seconds or 0.0, 3),
            load_config=config if body.echo_load_config else UNSET,
        )
    )


async def unload_model(request: web.Request) -> web.Response:
    """Unload a model: what it is in use for ends first. Raises Forbidden, UnknownModel and AmbiguousModel."""
    body = convert(await read_object(request), InstanceName)
    await unload(services_of(request).registry, usable_model(request, body.instance_id))
    return json_answer(Unloaded(body.instance_id))


def _model(name: str, model: ModelSnapshot, length: int, facts: FolderFacts) -> Model:
    instance, kind = Instance(name, InstanceConfig(length)), model.spec.kind
    return Model(
        type=_kind(kind),
        publisher=name.rpartition("/")[0],
        key=name,
        display_name=name.rpartition("/")[2],
        size_bytes=model.spec.weight_bytes,
        loaded_instances=[instance] if model.state in IN_MEMORY else [],
        max_context_length=length,
        architecture=facts.family or None,
        quantization=Quantization(facts.quantization, facts.bits) if facts.quantization else None,
        capabilities=UNSET if kind is ModelKind.EMBEDDING else _capabilities(model.spec, facts),
    )


def _capabilities(spec: ModelSpec, facts: FolderFacts) -> Capabilities:
    return Capabilities("tools" in template_capabilities(facts.template), spec.takes_images)


def _context_of(services: Services, spec: ModelSpec) -> int:
    return context_length(spec, services.settings.engine_for(spec.name))


def _kind(kind: ModelKind) -> Kind:
    return "embedding" if kind is ModelKind.EMBEDDING else "llm"
