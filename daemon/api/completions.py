"""POST /v1/completions."""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web

from mlxd.daemon.api.answer import respond
from mlxd.daemon.api.body import read_object
from mlxd.daemon.api.inference import Job, max_wait_of, resolve_model
from mlxd.daemon.api.middleware import request_id_of
from mlxd.daemon.api.openai_objects import TextChoice
from mlxd.daemon.api.openai_requests import parse_completion
from mlxd.daemon.api.prompt_length import refuse_too_long
from mlxd.daemon.api.services import services_of
from mlxd.engines.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TextWording:
    """Answers as plain text that goes on from the prompt."""

    prefix: str = "cmpl-"
    whole_kind: str = "text_completion"
    chunk_kind: str = "text_completion"

    def opening(self) -> list[TextChoice]:
        return []

    def piece(self, text: str) -> list[TextChoice]:
        return [TextChoice(0, text)]

    def finish(self, reason: str) -> list[TextChoice]:
        return [TextChoice(0, "", finish_reason=reason)]

    def whole(self, text: str, reason: str) -> list[TextChoice]:
        return [TextChoice(0, text, finish_reason=reason)]


def routes() -> list[web.RouteDef]:
    """This module's part of the API."""
    return [web.post("/v1/completions", create)]


async def create(request: web.Request) -> web.StreamResponse:
    """Go on from a prompt."""
    services = services_of(request)
    completion = parse_completion(await read_object(request))
    prompt = completion.prompt

    def encode(tokenizer: Tokenizer, context_length: int) -> list[int]:
        if not isinstance(prompt, str):
            return list(prompt)
        refuse_too_long(tokenizer, prompt, context_length)
        return tokenizer.encode(prompt)

    job = Job(
        id=request_id_of(request),
        api="completions",
        resolved=resolve_model(services, completion.model),
        options=completion.options,
        encode=encode,
        prompt_param="prompt",
        continues_text=True,
        max_wait=max_wait_of(request, services.settings.residency.queue_timeout),
    )
    return await respond(request, job, completion.model, TextWording())
