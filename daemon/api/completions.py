"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aiohttp import web

from mlxd.daemon.api.answer import respond
from mlxd.daemon.api.body import read_object
from mlxd.daemon.api.inference import Job, Prepared, max_wait_of, resolve_model
from mlxd.daemon.api.middleware import request_id_of
from mlxd.daemon.api.openai_logprobs import TokenBytes
from mlxd.daemon.api.openai_requests import CompletionRequest, parse_completion
from mlxd.daemon.api.openai_text_choice import TextWriter
from mlxd.daemon.api.prompt_length import refuse_too_long
from mlxd.daemon.api.services import services_of
from mlxd.engines.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TextWording:
    """Answers as plain text that goes on from the prompt."""

    completion: CompletionRequest
    prefix: str = "cmpl-"
    whole_kind: str = "text_completion"
    chunk_kind: str = "text_completion"

    def writer(self, index: int, token_bytes: TokenBytes) -> TextWriter:
        """A writer for the choice of this number."""
        options = self.completion.options
        prompt = self.completion.prompts[index // options.n]
        echo = prompt if self.completion.echo and isinstance(prompt, str) else ""
        return TextWriter(index, token_bytes, logprobs=options.logprobs is not None, echo=echo)


def routes() -> list[web.RouteDef]:
    """This module's part of the API."""
    return [web.post("/v1/completions", create)]


async def create(request: web.Request) -> web.StreamResponse:
    """Go on from a prompt."""
    services = services_of(request)
    completion = parse_completion(await read_object(request))

    def prepare(tokenizer: Tokenizer, context_length: int) -> Prepared:
        prompts = [_tokens(prompt, tokenizer, context_length) for prompt in completion.prompts]
        guide = completion.options.guide
        return Prepared(prompts, None if guide is None else guide.check(tokenizer))

    job = Job(
        id=request_id_of(request),
        api="completions",
        resolved=resolve_model(services, completion.model),
        options=completion.options,
        prepare=prepare,
        prompts=len(completion.prompts),
        prompt_param="prompt",
        continues_text=True,
        max_wait=max_wait_of(request, services.settings.residency.queue_timeout),
    )
    return await respond(request, job, completion.model, TextWording(completion))


def _tokens(prompt: str | Sequence[int], tokenizer: Tokenizer, context_length: int) -> Sequence[int]:
    if not isinstance(prompt, str):
        return prompt
    refuse_too_long(tokenizer, prompt, context_length)
    return tokenizer.encode(prompt)
