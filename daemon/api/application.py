"""Puts the HTTP application together from its parts."""

from __future__ import annotations

from dataclasses import replace

from aiohttp import web

from mlxd.daemon.api import (
    admin,
    events,
    explain,
    health,
    key_list,
    logs,
    metrics,
    openapi,
    page,
    peer_list,
    pulls,
    reload,
    removal,
    requests,
    tokenize,
)
from mlxd.daemon.api.anthropic import failure, messages
from mlxd.daemon.api.authorize import authorize
from mlxd.daemon.api.embeddings import create as embeddings_create
from mlxd.daemon.api.embeddings import rerank
from mlxd.daemon.api.error_shapes import DEFAULT, SHAPES, ErrorShape
from mlxd.daemon.api.failed_attempts import ATTEMPTS, FailedAttempts
from mlxd.daemon.api.folders import FOLDERS, ModelFolders
from mlxd.daemon.api.forwarding import forward
from mlxd.daemon.api.middleware import add_headers, answer_errors, check_sender, name_requests
from mlxd.daemon.api.ollama import embed as ollama_embed
from mlxd.daemon.api.ollama import errors as ollama_errors
from mlxd.daemon.api.ollama import generation as ollama_generation
from mlxd.daemon.api.ollama import models as ollama_models
from mlxd.daemon.api.openai import chat, completions, models
from mlxd.daemon.api.openapi import DOCUMENT, Document
from mlxd.daemon.api.responses import create as responses_create
from mlxd.daemon.api.responses import kept as responses_kept
from mlxd.daemon.api.responses.store import STORE, ResponseStore
from mlxd.daemon.api.routers import llama_cpp, lm_studio
from mlxd.daemon.api.routes import ROUTES
from mlxd.daemon.api.services import SERVICES, Services

PARTS = (
    chat,
    completions,
    responses_create,
    responses_kept,
    embeddings_create,
    rerank,
    models,
    messages,
    ollama_models,
    ollama_generation,
    ollama_embed,
    tokenize,
    llama_cpp,
    lm_studio,
    requests,
    admin,
    removal,
    pulls,
    reload,
    events,
    logs,
    key_list,
    peer_list,
    explain,
    health,
    metrics,
    openapi,
    page,
)

# The calls of LM Studio lie below those of Ollama.
SHAPES_OF_FACADES: tuple[ErrorShape, ...] = (failure.ERRORS, replace(DEFAULT, prefix="/api/v1"), ollama_errors.SHAPE)


def make_application(services: Services) -> web.Application:
    """All routes over these services. To be served with `handler_cancellation`, which aborts for lost clients."""
    application = web.Application(middlewares=[name_requests, answer_errors, check_sender, authorize, forward])
    application[SERVICES] = services
    application[SHAPES] = SHAPES_OF_FACADES
    application[ROUTES] = {(route.method, route.name): route for part in PARTS for route in part.routes()}
    application[DOCUMENT] = Document(application[ROUTES].values(), application[SHAPES], services.version)
    application[page.PAGE] = page.read_page()
    application[ATTEMPTS] = FailedAttempts()
    application[FOLDERS] = ModelFolders()
    application[STORE] = ResponseStore()
    application.on_response_prepare.append(add_headers)
    application.on_response_prepare.append(failure.add_request_id)
    application.on_shutdown.append(events.close_feed)
    application.on_shutdown.append(logs.close_log)
    application.on_cleanup.append(_tell_attempts)
    application.add_routes([route.definition() for part in PARTS for route in part.routes()])
    return application


async def _tell_attempts(application: web.Application) -> None:
    application[ATTEMPTS].tell()
