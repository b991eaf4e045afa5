"""POST /api/chat and POST /api/generate; without anything to answer they load or unload the model."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from aiohttp import web

from mlxd.daemon.api.answer_options import AnswerOptions
from mlxd.daemon.api.asked_model import max_wait_of, resolve_model
from mlxd.daemon.api.body import read_as
from mlxd.daemon.api.caller import key_of
from mlxd.daemon.api.chat_request import ChatRequest, chat_job
from mlxd.daemon.api.inference import Inference, Job, Prepared
from mlxd.daemon.api.json_answer import json_answer
from mlxd.daemon.api.middleware import note_ignored, request_id_of
from mlxd.daemon.api.ollama.answer import NDJSON, LineWriter, Printer, Wording, chat_answer, generate_answer
from mlxd.daemon.api.ollama.bodies import ChatBody, GenerateBody
from mlxd.daemon.api.ollama.fields import CHAT, GENERATE, passed_over
from mlxd.daemon.api.ollama.keep_alive import NOW, check_unload, on_lease
from mlxd.daemon.api.ollama.objects import Answer, ChatAnswer, GenerateAnswer
from mlxd.daemon.api.ollama.parsing import Asked, parse_chat, parse_generate
from mlxd.daemon.api.routes import Route, Scope
from mlxd.daemon.api.services import services_of
from mlxd.daemon.api.streaming import collect, stream_answer
from mlxd.daemon.api.text_request import TextRequest, text_job
from mlxd.daemon.api.unloading import unload
from mlxd.registry.names import Resolved

A = TypeVar("A", bound=Answer)

CHAT_API = "ollama_chat"
GENERATE_API = "ollama_generate"

CHAT_EXAMPLE = {"model": "qwen", "messages": [{"role": "user", "content": "What is the capital of France?"}]}
GENERATE_EXAMPLE = {"model": "qwen", "prompt": "What is the capital of France?", "stream": False}


def routes() -> list[Route]:
    """This module's part of the API."""
    return [
        Route(
            "POST",
            "/api/chat",
            chat,
            Scope.INFER,
            body=ChatBody,
            answer=ChatAnswer,
            event=ChatAnswer,
            event_type=NDJSON,
            example=CHAT_EXAMPLE,
        ),
        Route(
            "POST",
            "/api/generate",
            generate,
            Scope.INFER,
            body=GenerateBody,
            answer=GenerateAnswer,
            event=GenerateAnswer,
            event_type=NDJSON,
            example=GENERATE_EXAMPLE,
        ),
    ]


async def chat(request: web.Request) -> web.StreamResponse:
    """Answer a chat; without messages load or unload the model."""
    ignored, asked = await read_as(request, lambda body: (list(passed_over(body, CHAT)), parse_chat(body)))
    note_ignored(request, ignored)
    return await _respond(request, asked, CHAT_API, chat_answer)


async def generate(request: web.Request) -> web.StreamResponse:
    """Answer a prompt, or go on from it if it is raw; without one load or unload the model."""
    ignored, asked = await read_as(request, lambda body: (list(passed_over(body, GENERATE)), parse_generate(body)))
    note_ignored(request, ignored)
    return await _respond(request, asked, GENERATE_API, generate_answer)


async def _respond(request: web.Request, asked: Asked, api: str, wording: Wording[A]) -> web.StreamResponse:
    services = services_of(request)
    resolved = resolve_model(request, asked.model)
    unloads = asked.request is None and asked.keep_alive == NOW
    if unloads:
        check_unload(request, resolved)
    job = _job(request, asked, resolved, api)
    if not unloads:
        job = replace(job, on_lease=on_lease(request, resolved, asked.keep_alive))
    inference = Inference(services, job)
    name = asked.model or resolved.model
    printer = Printer(services, inference, name, wording, asked.logprobs, services.clock())
    if unloads:
        await unload(services.registry, resolved.model)
        return json_answer(printer.without_request("unload"))
    if asked.request is None:
        await inference.tokens()
        return json_answer(printer.without_request("load"))
    if asked.stream:
        return await stream_answer(request, inference, LineWriter(printer), NDJSON)
    return json_answer(printer.whole(await collect(inference)))


def _job(request: web.Request, asked: Asked, resolved: Resolved, api: str) -> Job:
    match asked.request:
        case ChatRequest():
            return chat_job(request, asked.request, api)
        case TextRequest():
            return text_job(request, asked.request, api)
        case None:
            return Job(
                id=request_id_of(request),
                api=api,
                resolved=resolved,
                options=AnswerOptions(),
                prepare=lambda *_: Prepared(()),
                prompts=0,
                max_wait=max_wait_of(request),
                key=key_of(request),
            )
