"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from aiohttp import web

from mlxd.daemon.api.anthropic.answer import respond
from mlxd.daemon.api.anthropic.bodies import CountBody, MessageBody
from mlxd.daemon.api.anthropic.objects import Event, MessageAnswer, TokenCount
from mlxd.daemon.api.anthropic.parsing import parse_count, parse_message
from mlxd.daemon.api.body import read_as
from mlxd.daemon.api.chat_request import chat_job
from mlxd.daemon.api.inference import Inference
from mlxd.daemon.api.json_answer import json_answer
from mlxd.daemon.api.middleware import note_ignored
from mlxd.daemon.api.routes import Route, Scope
from mlxd.daemon.api.services import services_of

COUNTED = {"model": "qwen", "messages": [{"role": "user", "content": "What is the capital of France?"}]}
EXAMPLE = {**COUNTED, "max_tokens": 256}


def routes() -> list[Route]:
    """This module's part of the API."""
    return [
        Route(
            "POST",
            "/v1/messages",
            create,
            Scope.INFER,
            body=MessageBody,
            answer=MessageAnswer,
            event=Event,
            example=EXAMPLE,
        ),
        Route(
            "POST",
            "/v1/messages/count_tokens",
            count,
            Scope.INFER,
            body=CountBody,
            answer=TokenCount,
            example=COUNTED,
        ),
    ]


async def create(request: web.Request) -> web.StreamResponse:
    """Answer a chat with a message."""
    asked = await read_as(request, parse_message)
    note_ignored(request, asked.ignored)
    job = chat_job(request, asked.chat, "messages")
    return await respond(request, job, asked.chat.model, shows_thinking=asked.shows_thinking)


async def count(request: web.Request) -> web.Response:
    """Count the tokens of a chat, with nothing generated."""
    asked = await read_as(request, parse_count)
    note_ignored(request, asked.ignored)
    inference = Inference(services_of(request), chat_job(request, asked.chat, "count_tokens"))
    [prompt] = await inference.tokens()
    return json_answer(TokenCount(len(prompt)))
