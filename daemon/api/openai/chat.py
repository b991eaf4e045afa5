"""POST /v1/chat/completions."""

from __future__ import annotations

from dataclasses import dataclass, field

from aiohttp import web

from mlxd.daemon.api.body import read_as
from mlxd.daemon.api.call_ids import CallIds
from mlxd.daemon.api.chat_request import chat_job
from mlxd.daemon.api.middleware import note_ignored
from mlxd.daemon.api.openai.answer import respond
from mlxd.daemon.api.openai.bodies import ChatBody
from mlxd.daemon.api.openai.chat_choice import ChatWriter
from mlxd.daemon.api.openai.fields import CHAT
from mlxd.daemon.api.openai.logprobs import TokenBytes
from mlxd.daemon.api.openai.objects import ChatAnswer, ChatChunk
from mlxd.daemon.api.openai.parsing import parse_chat
from mlxd.daemon.api.routes import Route, Scope

EXAMPLE = {"model": "qwen", "messages": [{"role": "user", "content": "What is the capital of France?"}]}


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


def routes() -> list[Route]:
    """This module's part of the API."""
    return [
        Route(
            "POST",
            "/v1/chat/completions",
            create,
            Scope.INFER,
            body=ChatBody,
            answer=ChatAnswer,
            event=ChatChunk,
            example=EXAMPLE,
        )
    ]


async def create(request: web.Request) -> web.StreamResponse:
    """Answer a chat."""
    ignored, chat = await read_as(request, lambda body: (list(CHAT.passed_over(body)), parse_chat(body)))
    note_ignored(request, (*ignored, *chat.ignored))
    wording = ChatWording(chat.options.logprobs is not None)
    return await respond(request, chat_job(request, chat, "chat"), chat.model, wording)
