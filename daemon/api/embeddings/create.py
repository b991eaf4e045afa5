"""POST /v1/embeddings: vectors of texts, as OpenAI gives them."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from aiohttp import web

from mlxd.daemon.api.body import convert, read_as
from mlxd.daemon.api.embedding_job import EmbeddingJob, Vectors, embed, floats
from mlxd.daemon.api.embeddings.bodies import (
    EMBEDDINGS,
    MAX_INPUTS,
    EmbeddingObject,
    Embeddings,
    EmbeddingsBody,
    TokensRead,
)
from mlxd.daemon.api.encoding import Caller
from mlxd.daemon.api.middleware import note_ignored
from mlxd.daemon.api.refusals import InvalidField
from mlxd.daemon.api.routes import Route, Scope
from mlxd.daemon.api.services import services_of

EXAMPLE = {"model": "minilm", "input": ["A man is eating food.", "The girl plays the violin."]}


def routes() -> list[Route]:
    """This module's part of the API."""
    return [
        Route(
            "POST",
            "/v1/embeddings",
            create,
            Scope.INFER,
            body=EmbeddingsBody,
            answer=Embeddings[EmbeddingObject],
            example=EXAMPLE,
        )
    ]


async def create(request: web.Request) -> web.Response:
    """Make a vector of each input."""
    ignored, (body, job) = await read_as(
        request, lambda raw: (list(EMBEDDINGS.passed_over(raw)), parse_embeddings(raw))
    )
    note_ignored(request, ignored)
    caller = Caller.of(request, body.model, "embeddings")
    made = await embed(services_of(request), caller, job)
    name = body.model or caller.resolved.model
    # off the event loop: millions of numbers take their time
    answer = await asyncio.to_thread(_written, made, name, as_text=body.encoding_format == "base64")
    return web.Response(body=answer, content_type="application/json")


def parse_embeddings(raw: Mapping[str, Any]) -> tuple[EmbeddingsBody, EmbeddingJob]:
    """Check a body. Raises InvalidField."""
    EMBEDDINGS.check(raw)
    body = convert(raw, EmbeddingsBody)
    several = not isinstance(body.input, str) and not isinstance(body.input[0], int)
    return body, EmbeddingJob(
        _inputs(body.input), is_list=several, dimensions=body.dimensions, prompt_name=body.prompt_name
    )


def _inputs(given: str | Sequence[str | int | list[int]]) -> Sequence[str] | Sequence[Sequence[int]]:
    """The texts, or the token ids of each input: one kind only."""
    if isinstance(given, str):
        return [given]
    if isinstance(given[0], int):
        return [_ids(given, "input")]
    if len(given) > MAX_INPUTS:
        raise InvalidField(f"input: at most {MAX_INPUTS} inputs are taken in one request", "input")
    if isinstance(given[0], str):
        return [_text(each, f"input[{number}]") for number, each in enumerate(given)]
    return [_ids(each, f"input[{number}]") for number, each in enumerate(given)]


def _text(given: str | int | list[int], place: str) -> str:
    if not isinstance(given, str):
        raise InvalidField(f"{place}: expected text, as in the other inputs", place)
    if not given:
        raise InvalidField(f"{place}: there is nothing in it", place)
    return given


def _ids(given: object, place: str) -> Sequence[int]:
    if not isinstance(given, list) or not given:
        raise InvalidField(f"{place}: expected token ids, as in the other inputs, at least one", place)
    for number, each in enumerate(given):
        if not isinstance(each, int):
            raise InvalidField(f"{place}[{number}]: expected a token id, as before it", f"{place}[{number}]")
    return given


def _written(made: Vectors, model: str, *, as_text: bool) -> bytes:
    """The answer as JSON, vector by vector: others get their turn between two."""
    data = [
        msgspec.Raw(msgspec.json.encode(EmbeddingObject(index, _number_form(vector, as_text=as_text))))
        for index, vector in enumerate(made.vectors)
        if vector is not None
    ]
    tokens = made.encoded.prompt_tokens
    return msgspec.json.encode(Embeddings(data, model, TokensRead(tokens, tokens), made.encoded.vendor))


def _number_form(vector: bytes, *, as_text: bool) -> list[float] | str:
    return base64.b64encode(vector).decode() if as_text else floats(vector)
