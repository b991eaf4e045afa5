"""POST /api/embed and POST /api/embeddings; without anything to embed they load or unload the model."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web
from msgspec import structs

from mlxd.daemon.api.asked_model import resolve_model
from mlxd.daemon.api.body import convert, read_object
from mlxd.daemon.api.embedding_job import EmbeddingJob, Vectors, embed, floats
from mlxd.daemon.api.encoding import Caller, Encoded
from mlxd.daemon.api.fields import FieldTable
from mlxd.daemon.api.json_answer import json_answer
from mlxd.daemon.api.middleware import note_ignored
from mlxd.daemon.api.ollama.bodies import EmbedBody, EmbeddingsBody
from mlxd.daemon.api.ollama.fields import EMBED, EMBEDDINGS, VECTOR_OPTIONS, check, passed_over
from mlxd.daemon.api.ollama.keep_alive import NOW, check_unload, on_lease, parse_keep_alive
from mlxd.daemon.api.ollama.moments import nanoseconds
from mlxd.daemon.api.ollama.objects import EmbedAnswer, EmbeddingsAnswer
from mlxd.daemon.api.ollama.options import Options, sampling
from mlxd.daemon.api.refusals import InvalidField, UnsupportedCapability
from mlxd.daemon.api.routes import Route, Scope
from mlxd.daemon.api.services import Services, services_of
from mlxd.daemon.api.unloading import unload
from mlxd.registry.residency import KeepAlive
from mlxd.registry.spec import ModelKind

API = "ollama_embed"
EXAMPLE = {"model": "minilm", "input": ["A man is eating food.", "The girl plays the violin."]}
OLD_EXAMPLE = {"model": "minilm", "prompt": "A man is eating food."}


@dataclass(frozen=True, slots=True)
class Asked:
    """A checked call."""

    model: str | None
    job: EmbeddingJob
    keep_alive: KeepAlive | None


def routes() -> list[Route]:
    """This module's part of the API."""
    return [
        Route(
            "POST", "/api/embed", create, Scope.INFER, body=EmbedBody, answer=EmbedAnswer[list[float]], example=EXAMPLE
        ),
        Route(
            "POST",
            "/api/embeddings",
            create_one,
            Scope.INFER,
            body=EmbeddingsBody,
            answer=EmbeddingsAnswer,
            example=OLD_EXAMPLE,
        ),
    ]


async def create(request: web.Request) -> web.Response:
    """Make a vector of length 1 of each input; without any load or unload the model."""
    services, started = services_of(request), services_of(request).clock()
    asked = parse_embed(await _read(request, EMBED))
    made = await _embed(request, asked)
    total = services.clock() - started
    name = asked.model or resolve_model(request, None).model
    return json_answer(await asyncio.to_thread(_written, made, name, total))


async def create_one(request: web.Request) -> web.Response:
    """Make a vector of a prompt, as long as the model makes it; without one load or unload the model."""
    made = await _embed(request, parse_embeddings(await _read(request, EMBEDDINGS)))
    return json_answer(EmbeddingsAnswer(_numbers(next(iter(made.vectors), None))))


def parse_embed(raw: Mapping[str, Any]) -> Asked:
    """Check the body of an embed call. Raises InvalidField."""
    check(raw, EMBED)
    body = convert(raw, EmbedBody)
    sampling(body.options or Options())  # no option changes anything, and a wrong one is wrong all the same
    inputs = [body.input] if isinstance(body.input, str) else body.input or []
    if inputs == [""]:
        inputs = []
    for number, text in enumerate(inputs):
        if not text:
            raise InvalidField(f"input[{number}]: there is nothing in it", f"input[{number}]")
    job = EmbeddingJob(
        inputs,
        is_list=not isinstance(body.input, str),
        truncate=body.truncate is not False,
        dimensions=body.dimensions or None,
        unit=True,
    )
    return Asked(body.model, job, parse_keep_alive(body.keep_alive))


def parse_embeddings(raw: Mapping[str, Any]) -> Asked:
    """Check the body of an embeddings call. Raises InvalidField."""
    check(raw, EMBEDDINGS)
    body = convert(raw, EmbeddingsBody)
    sampling(body.options or Options())
    inputs = [body.prompt] if body.prompt else []
    job = EmbeddingJob(inputs, param="prompt", is_list=False, truncate=True)
    return Asked(body.model, job, parse_keep_alive(body.keep_alive))


async def _read(request: web.Request, table: FieldTable) -> Mapping[str, Any]:
    raw = await read_object(request)
    note_ignored(request, passed_over(raw, table, VECTOR_OPTIONS))
    return raw


async def _embed(request: web.Request, asked: Asked) -> Vectors:
    services = services_of(request)
    resolved = resolve_model(request, asked.model)
    if not asked.job.inputs and asked.keep_alive == NOW:
        check_unload(request, resolved)
        await unload(services.registry, resolved.model)
        return _nothing(0.0, 0.0)
    caller = Caller.of(request, asked.model, API, on_lease(request, resolved, asked.keep_alive))
    if not asked.job.inputs:
        return await _load(services, caller)
    return await embed(services, caller, asked.job)


async def _load(services: Services, caller: Caller) -> Vectors:
    """Hold the model for a moment. Raises the errors of the registry and UnsupportedCapability."""
    name = caller.resolved.model
    if services.registry.spec(name).kind is not ModelKind.EMBEDDING:
        raise UnsupportedCapability(f"model {name} generates text and makes no embeddings", "model")
    with services.running.track(caller.id, name, caller.api, caller.key) as live:
        async with services.registry.lease(name, request_id=live.id, max_wait=caller.max_wait, key=caller.key) as lease:
            caller.on_lease()
            return _nothing(lease.queue_s, lease.load_s)


def _nothing(queue_s: float, load_s: float) -> Vectors:
    return Vectors((), Encoded(None, None, queue_s, load_s))


def _written(made: Vectors, model: str, total: float) -> EmbedAnswer[msgspec.Raw]:
    vendor = made.encoded.vendor
    return EmbedAnswer(
        model=model,
        # one by one: others get their turn between two
        embeddings=[msgspec.Raw(msgspec.json.encode(_numbers(vector))) for vector in made.vectors],
        total_duration=nanoseconds(total),
        load_duration=nanoseconds(made.encoded.queue_s),
        prompt_eval_count=made.encoded.prompt_tokens,
        mlxd=vendor if made.vectors else structs.replace(vendor, cancelled=False),
    )


def _numbers(vector: bytes | None) -> list[float]:
    return [] if vector is None else floats(vector)
