"""POST /v1/responses and /v1/responses/input_tokens."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace

import msgspec
from aiohttp import web

from mlxd.daemon.api.body import read_as
from mlxd.daemon.api.chat_request import ChatRequest, chat_job
from mlxd.daemon.api.inference import Inference, Job
from mlxd.daemon.api.json_answer import json_answer
from mlxd.daemon.api.middleware import note_ignored
from mlxd.daemon.api.requests import owner_of
from mlxd.daemon.api.responses.bodies import CreateBody, PromptBody
from mlxd.daemon.api.responses.context import Context, context_of
from mlxd.daemon.api.responses.conversation import Messages
from mlxd.daemon.api.responses.draft import Draft
from mlxd.daemon.api.responses.events import AnyEvent
from mlxd.daemon.api.responses.objects import InputTokens, ResponseObject, begun
from mlxd.daemon.api.responses.parsing import WantedPrompt, parse_count, parse_create
from mlxd.daemon.api.responses.store import STORE, LiveResponse
from mlxd.daemon.api.responses.writer import EventWriter
from mlxd.daemon.api.routes import Route, Scope
from mlxd.daemon.api.services import services_of
from mlxd.daemon.api.streaming import stream_answer

EXAMPLE = {"model": "qwen", "input": "What is the capital of France?"}


def routes() -> list[Route]:
    """This module's part of the API."""
    path = "/v1/responses"
    return [
        Route(
            "POST",
            path,
            create,
            Scope.INFER,
            body=CreateBody,
            answer=ResponseObject,
            event=AnyEvent,
            example=EXAMPLE,
        ),
        Route(
            "POST",
            f"{path}/input_tokens",
            count_tokens,
            Scope.INFER,
            body=PromptBody,
            answer=InputTokens,
            example=EXAMPLE,
        ),
    ]


async def create(request: web.Request) -> web.StreamResponse:
    """Answer the end of a conversation."""
    body, wanted = await read_as(request, parse_create)
    note_ignored(request, wanted.ignored)
    services = services_of(request)
    context = await context_of(request.app[STORE], wanted, owner_of(request))
    job = _job(request, wanted, context.messages)
    is_wanted = body.store is not False
    with request.app[STORE].track(job.id, job.key, is_wanted=is_wanted, taken=services.running) as live:
        inference = Inference(services, replace(job, id=live.request_id))
        base = begun(body, live.id, job.resolved.model, int(services.wall_clock()))
        draft = _draft(request, inference, base, context, live)
        if not job.options.stream:
            return await _whole(inference, draft)
        try:
            return await stream_answer(request, inference, EventWriter(draft))
        finally:
            draft.abandon()


async def count_tokens(request: web.Request) -> web.Response:
    """Count the tokens of a prompt; loads the model if it has to."""
    wanted = await read_as(request, parse_count)
    note_ignored(request, wanted.ignored)
    services = services_of(request)
    context = await context_of(request.app[STORE], wanted, owner_of(request))
    [prompt] = await Inference(services, _job(request, wanted, context.messages)).tokens()
    return _json(InputTokens(len(prompt)))


def _job(request: web.Request, wanted: WantedPrompt, messages: Messages) -> Job:
    body = wanted.body
    chat = ChatRequest(
        body.model,
        tuple(messages),
        wanted.options,
        tools=wanted.tools,
        effort=body.reasoning.effort if body.reasoning is not None else None,
        effort_param="reasoning.effort",
        param="input",
    )
    return chat_job(request, chat, "responses")


def _draft(
    request: web.Request, inference: Inference, base: ResponseObject, context: Context, live: LiveResponse
) -> Draft:
    """A draft that is kept at its end, and that others can look at and end until then."""
    services, store = services_of(request), request.app[STORE]

    def end(response: ResponseObject) -> None:
        if live.is_wanted:
            store.keep(context.turn(live, response))
        live.end()

    draft = Draft(base, inference, services.wall_clock, end)
    live.snapshot = lambda: msgspec.json.encode(draft.response)
    live.cancel = lambda: services.running.cancel(inference.id)
    return draft


async def _whole(inference: Inference, draft: Draft) -> web.Response:
    async with aclosing(inference.outputs()) as outputs:
        async for _, output in outputs:
            draft.add(output)
    return _json(draft.response)


def _json(answer: object) -> web.Response:
    return json_answer(answer)
