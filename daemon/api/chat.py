"""POST /v1/chat/completions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web

from mlxd.daemon.api.answer import respond
from mlxd.daemon.api.body import read_object
from mlxd.daemon.api.inference import Job, max_wait_of, resolve_model
from mlxd.daemon.api.middleware import request_id_of
from mlxd.daemon.api.openai_objects import AnswerMessage, ChatChoice, ChunkChoice, Delta
from mlxd.daemon.api.openai_requests import ChatRequest, parse_chat
from mlxd.daemon.api.prompt_length import LONG_TEXT, refuse_too_long
from mlxd.daemon.api.services import Services, services_of
from mlxd.daemon.catalog import preset_for
from mlxd.engines.tokenizer import Tokenizer
from mlxd.registry.names import Resolved


@dataclass(frozen=True, slots=True)
class ChatWording:
    """Answers as messages, streamed as deltas."""

    prefix: str = "chatcmpl-"
    whole_kind: str = "chat.completion"
    chunk_kind: str = "chat.completion.chunk"

    def opening(self) -> list[ChunkChoice]:
        return [ChunkChoice(0, Delta(role="assistant", content=""))]

    def piece(self, text: str) -> list[ChunkChoice]:
        return [ChunkChoice(0, Delta(content=text))]

    def finish(self, reason: str) -> list[ChunkChoice]:
        return [ChunkChoice(0, Delta(), finish_reason=reason)]

    def whole(self, text: str, reason: str) -> list[ChatChoice]:
        return [ChatChoice(0, AnswerMessage(text), reason)]


def routes() -> list[web.RouteDef]:
    """This module's part of the API."""
    return [web.post("/v1/chat/completions", create)]


async def create(request: web.Request) -> web.StreamResponse:
    """Answer a chat."""
    services = services_of(request)
    chat = parse_chat(await read_object(request))
    resolved = resolve_model(services, chat.model)
    template = _template(services, resolved, chat)

    def encode(tokenizer: Tokenizer, context_length: int) -> list[int]:
        if len(msgspec.json.encode((chat.messages, template))) > LONG_TEXT:
            refuse_too_long(tokenizer, tokenizer.render_chat(chat.messages, template), context_length)
        return tokenizer.encode_chat(chat.messages, template)

    job = Job(
        id=request_id_of(request),
        api="chat",
        resolved=resolved,
        options=chat.options,
        encode=encode,
        max_wait=max_wait_of(request, services.settings.residency.queue_timeout),
    )
    return await respond(request, job, chat.model, ChatWording())


def _template(services: Services, resolved: Resolved, chat: ChatRequest) -> dict[str, Any]:
    preset = preset_for(services.settings, resolved.model, resolved.preset)
    return {**(preset.template if preset is not None else {}), **chat.template}
