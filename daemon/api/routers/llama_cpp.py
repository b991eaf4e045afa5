"""The calls of a llama.cpp router: GET /models, POST /models/load and POST /models/unload."""

from __future__ import annotations

from typing import Annotated

from aiohttp import web
from msgspec import Meta, Struct

from mlxd.daemon.api.body import convert, read_object
from mlxd.daemon.api.caller import usable_model
from mlxd.daemon.api.json_answer import json_answer
from mlxd.daemon.api.openai.models import list_models
from mlxd.daemon.api.openai.objects import ModelList
from mlxd.daemon.api.routes import Route, Scope
from mlxd.daemon.api.services import services_of
from mlxd.daemon.api.unloading import unload
from mlxd.registry.explain import Verdict

EXAMPLE = {"model": "qwen"}


class NamedModel(Struct, frozen=True, forbid_unknown_fields=True):
    """POST /models/load and /models/unload."""

    model: Annotated[str, Meta(min_length=1)]


class Success(Struct, frozen=True):
    """What was asked for is under way."""

    success: bool = True


def routes() -> list[Route]:
    """This module's part of the API. A router's list of models is OpenAI's, with a status."""
    return [
        Route("GET", "/models", list_models, Scope.INFER, answer=ModelList),
        Route(
            "POST",
            "/models/load",
            load_model,
            Scope.ADMIN,
            body=NamedModel,
            answer=Success,
            example=EXAMPLE,
            about_models=True,
        ),
        Route(
            "POST",
            "/models/unload",
            unload_model,
            Scope.ADMIN,
            body=NamedModel,
            answer=Success,
            example=EXAMPLE,
            about_models=True,
        ),
    ]


async def load_model(request: web.Request) -> web.Response:
    """Begin to load a model, which nobody waits for. Raises Forbidden, UnknownModel, AmbiguousModel, ModelTooLarge."""
    body = convert(await read_object(request), NamedModel)
    registry, model = services_of(request).registry, usable_model(request, body.model)
    # to wait for one that can never fit is to be told so at once
    hopeless = registry.explain(model, operator=True).verdict is Verdict.NEVER_FITS
    await registry.load(model, wait=hopeless)
    return json_answer(Success())


async def unload_model(request: web.Request) -> web.Response:
    """Unload a model: what it is in use for ends first. Raises Forbidden, UnknownModel and AmbiguousModel."""
    body = convert(await read_object(request), NamedModel)
    await unload(services_of(request).registry, usable_model(request, body.model))
    return json_answer(Success())
