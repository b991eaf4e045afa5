"""Raw prompts as every facade hands them on, and the job that goes on from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aiohttp import web

from mlxd.daemon.api.answer_options import AnswerOptions
from mlxd.daemon.api.asked_model import max_wait_of, resolve_model
from mlxd.daemon.api.caller import key_of
from mlxd.daemon.api.inference import Job, Prepared
from mlxd.daemon.api.middleware import request_id_of
from mlxd.daemon.api.prompt_length import refuse_too_long
from mlxd.engines.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TextRequest:
    """Checked prompts: each is text, or token ids. `param` is the field that holds them."""

    model: str | None
    prompts: tuple[str | tuple[int, ...], ...]
    options: AnswerOptions
    param: str = "prompt"


def text_job(request: web.Request, text: TextRequest, api: str) -> Job:
    """What goes on from the prompts; `api` is the facade's name in metrics and lists.

    Raises InvalidField, Forbidden, UnknownModel and AmbiguousModel.
    """

    def prepare(tokenizer: Tokenizer, context_length: int, _: object) -> Prepared:
        prompts = [_tokens(prompt, tokenizer, context_length) for prompt in text.prompts]
        guide = text.options.guide
        return Prepared(prompts, None if guide is None else guide.check(tokenizer))

    return Job(
        id=request_id_of(request),
        api=api,
        resolved=resolve_model(request, text.model),
        options=text.options,
        prepare=prepare,
        prompts=len(text.prompts),
        prompt_param=text.param,
        continues_text=True,
        max_wait=max_wait_of(request),
        key=key_of(request),
        shown=lambda: "\n".join(map(_shown, text.prompts)),
    )


def _shown(prompt: str | Sequence[int]) -> str:
    return prompt if isinstance(prompt, str) else f"tokens {list(prompt)}"


def _tokens(prompt: str | Sequence[int], tokenizer: Tokenizer, context_length: int) -> Sequence[int]:
    if not isinstance(prompt, str):
        return prompt
    refuse_too_long(tokenizer, prompt, context_length)
    return tokenizer.encode(prompt)
