"""GET /api/tags, GET /api/ps, POST /api/show and GET /api/version: what there is. None of them loads a model."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec
from aiohttp import web

from mlxd.daemon.api.body import convert, read_object
from mlxd.daemon.api.caller import may_use, usable_meaning, usable_names
from mlxd.daemon.api.capabilities import capabilities
from mlxd.daemon.api.folders import FOLDERS, FolderFacts
from mlxd.daemon.api.json_answer import json_answer
from mlxd.daemon.api.middleware import note_ignored
from mlxd.daemon.api.ollama.bodies import ShowBody
from mlxd.daemon.api.ollama.fields import SHOW
from mlxd.daemon.api.ollama.moments import NEVER, rfc3339
from mlxd.daemon.api.ollama.objects import (
    Details,
    ListedModel,
    LoadedModel,
    LoadedModels,
    ModelTags,
    ShownModel,
    VersionAnswer,
)
from mlxd.daemon.api.refusals import InvalidField
from mlxd.daemon.api.routes import Route, Scope
from mlxd.daemon.api.services import Services, services_of
from mlxd.daemon.catalog import sampling_for
from mlxd.daemon.engine_factory import context_length
from mlxd.registry.names import Resolved
from mlxd.registry.snapshot import ModelSnapshot
from mlxd.registry.spec import ModelSpec
from mlxd.registry.states import State

OLLAMA_VERSION = "0.12.11"
"""Clients ask for the least version that has what they need. This one has all the fields that are served here."""

_LOADED = (State.READY, State.DRAINING)
# What Ollama calls the sampling values that a configuration may set.
_PARAMETERS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "seed": "seed",
    "max_tokens": "num_predict",
    "repetition_penalty": "repeat_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}
_SIZES = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K"))


def routes() -> list[Route]:
    """This module's part of the API."""
    return [
        Route("GET", "/api/tags", tags, Scope.INFER, answer=ModelTags),
        Route("GET", "/api/ps", loaded, Scope.INFER, answer=LoadedModels),
        Route("POST", "/api/show", show, Scope.INFER, body=ShowBody, answer=ShownModel, example={"model": "qwen"}),
        Route("GET", "/api/version", version, Scope.INFER, answer=VersionAnswer),
    ]


async def tags(request: web.Request) -> web.Response:
    """Every name that the caller may use: models, then aliases, then presets."""
    services, names = services_of(request), [*usable_names(request)]
    # before anything is awaited: a reload may remove a model meanwhile
    specs = {meaning.model: services.registry.spec(meaning.model) for _, meaning in names}
    facts = await request.app[FOLDERS].facts_of(specs.values())

    def listed() -> ModelTags:
        return ModelTags([_listed(services, name, meaning, specs, facts) for name, meaning in names])

    # beside the event loop: there may be a thousand
    return json_answer(await asyncio.to_thread(listed))


async def loaded(request: web.Request) -> web.Response:
    """The models in memory, the one that stays longest first."""
    models = [model for model in services_of(request).registry.models() if model.state in _LOADED]
    usable = [model for model in models if may_use(request, Resolved(model.spec.name))]
    shown = [await _loaded(request, model) for model in usable]
    return json_answer(LoadedModels(sorted(shown, key=lambda model: model.expires_at, reverse=True)))


async def show(request: web.Request) -> web.Response:
    """One model, by any of its names. Raises Forbidden, UnknownModel and AmbiguousModel."""
    services = services_of(request)
    raw = await read_object(request)
    SHOW.check(raw)
    body = convert(raw, ShowBody)
    note_ignored(request, SHOW.passed_over(raw))
    name = body.model or body.name
    if not name:
        raise InvalidField("model: it is required", "model")
    meaning = usable_meaning(request, name)
    spec = services.registry.spec(meaning.model)
    facts = await request.app[FOLDERS].facts(spec)
    parameters = _parameters(services, meaning)
    return json_answer(
        ShownModel(
            modelfile="\n".join([f"FROM {meaning.model}", *(f"PARAMETER {line}" for line in parameters)]),
            parameters="\n".join(parameters),
            template=facts.template,
            details=_details(services, spec, facts),
            model_info=_info(services, spec, facts),
            capabilities=capabilities(spec.kind, facts.template, takes_images=spec.takes_images),
            modified_at=_modified(services, spec),
        )
    )


async def version(request: web.Request) -> web.Response:
    """The version of Ollama whose API this is."""
    return json_answer(VersionAnswer(OLLAMA_VERSION, services_of(request).version))


def _listed(
    services: Services,
    name: str,
    meaning: Resolved,
    specs: Mapping[str, ModelSpec],
    facts: Mapping[str, FolderFacts],
) -> ListedModel:
    spec = specs[meaning.model]
    return ListedModel(
        name=name,
        model=name,
        modified_at=_modified(services, spec),
        size=spec.weight_bytes,
        digest=_digest(spec, meaning.preset),
        details=_details(services, spec, facts[spec.name]),
        capabilities=capabilities(spec.kind, facts[spec.name].template, takes_images=spec.takes_images),
    )


async def _loaded(request: web.Request, model: ModelSnapshot) -> LoadedModel:
    services, spec = services_of(request), model.spec
    return LoadedModel(
        name=spec.name,
        model=spec.name,
        size=model.resident_bytes,
        digest=_digest(spec, None),
        details=_details(services, spec, await request.app[FOLDERS].facts(spec)),
        expires_at=_expires(services, model),
        size_vram=model.resident_bytes,
        context_length=context_length(spec, services.settings.engine_for(spec.name)),
    )


def _expires(services: Services, model: ModelSnapshot) -> str:
    """When it leaves if nobody uses it, or uses it any more."""
    if model.pinned or model.ttl is None:
        return NEVER
    return rfc3339(services.wall_clock() + model.ttl if model.unload_at is None else model.unload_at)


def _digest(spec: ModelSpec, preset: str | None) -> str:
    """The same for as long as the model's files and the preset's name are the same."""
    return hashlib.sha256(f"{spec.path}\n{spec.load_key}\n{preset or ''}".encode()).hexdigest()


def _modified(services: Services, spec: ModelSpec) -> str:
    """When the newest of a model's files was written; the daemon's start where that is not known."""
    _, stamp = services.live.catalog.basis.files.get(spec.path, ("", ""))
    times = [] if isinstance(stamp, str) else [written for _, _, written in stamp]
    return rfc3339(max(times) / 1e9 if times else services.started)


def _details(services: Services, spec: ModelSpec, facts: FolderFacts) -> Details:
    return Details(
        family=facts.family,
        families=[facts.family] if facts.family else [],
        parameter_size=_size(_parameter_count(services, spec, facts)),
        quantization_level=facts.quantization,
    )


def _parameter_count(services: Services, spec: ModelSpec, facts: FolderFacts) -> int:
    """About how many weights there are, by their bytes."""
    estimate = services.live.catalog.basis.estimates.get(spec.path)
    bits = facts.bits or (8 * estimate.itemsize if estimate is not None else 0)
    return round(spec.weight_bytes * 8 / bits) if bits else 0


def _size(count: int) -> str:
    return next((f"{count / unit:.1f}{letter}" for unit, letter in _SIZES if count >= unit), str(count or ""))


def _info(services: Services, spec: ModelSpec, facts: FolderFacts) -> dict[str, Any]:
    family = facts.family or "unknown"
    numbers = {
        "general.parameter_count": _parameter_count(services, spec, facts),
        f"{family}.context_length": context_length(spec, services.settings.engine_for(spec.name)),
        f"{family}.embedding_length": facts.embedding_length,
        f"{family}.block_count": facts.layers,
        f"{family}.attention.head_count": facts.heads,
        f"{family}.attention.head_count_kv": facts.kv_heads,
        f"{family}.vocab_size": facts.vocab_size,
    }
    known = {name: count for name, count in numbers.items() if count}
    return {"general.architecture": family, "general.basename": spec.name, **known}


def _parameters(services: Services, meaning: Resolved) -> list[str]:
    """Sampling values that are configured, in the lines of a Modelfile."""
    given = sampling_for(services.settings, meaning.model, meaning.preset).given()
    lines = [f"{_PARAMETERS[name]} {value}" for name, value in given.items() if name in _PARAMETERS]
    return [*lines, *(f"stop {msgspec.json.encode(text).decode()}" for text in given.get("stop", ()))]
