"""POST /v1/completions."""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web

from mlxd.daemon.api.body import read_as
from mlxd.daemon.api.middleware import note_ignored
from mlxd.daemon.api.openai.answer import respond
from mlxd.daemon.api.openai.bodies import CompletionBody
from mlxd.daemon.api.openai.fields import COMPLETIONS
from mlxd.daemon.api.openai.logprobs import TokenBytes
from mlxd.daemon.api.openai.objects import TextAnswer
from mlxd.daemon.api.openai.parsing import CompletionRequest, parse_completion
from mlxd.daemon.api.openai.text_choice import TextWriter
from mlxd.daemon.api.routes import Route, Scope
from mlxd.daemon.api.text_request import text_job

EXAMPLE = {"model": "qwen", "prompt": "Once upon a time", "max_tokens": 16}


@dataclass(frozen=True, slots=True)
class TextWording:
    """Answers as plain text that goes on from the prompt."""

    completion: CompletionRequest
    prefix: str = "cmpl-"
    whole_kind: str = "text_completion"
    chunk_kind: str = "text_completion"

    def writer(self, index: int, token_bytes: TokenBytes) -> TextWriter:
        """A writer for the choice of this number."""
        text = self.completion.text
        prompt = text.prompts[index // text.options.n]
        echo = prompt if self.completion.echo and isinstance(prompt, str) else ""
        return TextWriter(index, token_bytes, logprobs=text.options.logprobs is not None, echo=echo)


def routes() -> list[Route]:
    """This module's part of the API."""
    return [
        Route(
            "POST",
            "/v1/completions",
            create,
            Scope.INFER,
            body=CompletionBody,
            answer=TextAnswer,
            event=TextAnswer,
            example=EXAMPLE,
        )
    ]


async def create(request: web.Request) -> web.StreamResponse:
    """Go on from a prompt."""
    ignored, completion = await read_as(
        request, lambda body: (list(COMPLETIONS.passed_over(body)), parse_completion(body))
    )
    note_ignored(request, ignored)
    text = completion.text
    return await respond(request, text_job(request, text, "completions"), text.model, TextWording(completion))
