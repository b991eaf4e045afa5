"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web

from mlxd.daemon.api.answer import respond
from mlxd.daemon.api.body import read_object
from mlxd.daemon.api.inference import Job, Prepared, max_wait_of, resolve_model
from mlxd.daemon.api.middleware import request_id_of
from mlxd.daemon.api.openai_chat_choice import CallIds, ChatWriter
from mlxd.daemon.api.openai_logprobs import TokenBytes
from mlxd.daemon.api.openai_requests import ChatRequest, parse_chat
from mlxd.daemon.api.prompt_length import LONG_TEXT, refuse_too_long
from mlxd.daemon.api.reasoning_effort import effort_variables
from mlxd.daemon.api.services import services_of
from mlxd.daemon.catalog import preset_for
from mlxd.engines.tokenizer import Tokenizer
from mlxd.engines.types import ChatFormat


@dataclass(frozen=True, slots=True)
class ChatWording:
    """Answers as messages, streamed as deltas."""

    logprobs: bool
    prefix: str = "chatcmpl-"
    whole_kind: str = "chat.completion"
    chunk_kind: str = "chat.completion.chunk"
    _ids: CallIds = field(default_factory=CallIds)

    def writer(self, index: int, token_bytes: TokenBytes) -> ChatWriter:
        """A writer for the choice of this number."""
        return ChatWriter(index, self._ids, token_bytes, logprobs=self.logprobs)


def routes() -> list[web.RouteDef]:
    """This module's part of the API."""
    return [web.post("/v1/chat/completions", create)]


async def create(request: web.Request) -> web.StreamResponse:
    """Answer a chat."""
    services = services_of(request)
    chat = parse_chat(await read_object(request))
    resolved = resolve_model(services, chat.model)
    preset = preset_for(services.settings, resolved.model, resolved.preset)
    defaults = preset.template if preset is not None else {}

    def prepare(tokenizer: Tokenizer, context_length: int) -> Prepared:
        chat.tools.check(tokenizer)
        template = {**defaults, **effort_variables(tokenizer, chat.reasoning_effort), **chat.template}
        prompt = _tokens(chat, template, tokenizer, context_length)
        return Prepared([prompt], chat.tools.guide(tokenizer, chat.options.guide))

    job = Job(
        id=request_id_of(request),
        api="chat",
        resolved=resolved,
        options=chat.options,
        prepare=prepare,
        chat=ChatFormat(chat.tools.tools, chat.tools.max_calls),
        max_wait=max_wait_of(request, services.settings.residency.queue_timeout),
    )
    return await respond(request, job, chat.model, ChatWording(chat.options.logprobs is not None))


def _tokens(chat: ChatRequest, template: Mapping[str, Any], tokenizer: Tokenizer, context_length: int) -> list[int]:
    tools = chat.tools.tools or None
    if len(msgspec.json.encode((chat.messages, template, tools))) > LONG_TEXT:
        refuse_too_long(tokenizer, tokenizer.render_chat(chat.messages, template, tools), context_length)
    return tokenizer.encode_chat(chat.messages, template, tools)
