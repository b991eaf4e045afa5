"""POST /v1/tokenize: what a prompt or a chat is for a model, with nothing generated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

from aiohttp import web
from msgspec import Meta, Struct

from mlxd.daemon.api.answer_options import AnswerOptions
from mlxd.daemon.api.body import convert, read_as
from mlxd.daemon.api.chat_request import ChatRequest, chat_job
from mlxd.daemon.api.fields import FieldTable
from mlxd.daemon.api.inference import Inference, Job, Prepared
from mlxd.daemon.api.json_answer import json_answer
from mlxd.daemon.api.middleware import note_ignored
from mlxd.daemon.api.openai.logprobs import token_text
from mlxd.daemon.api.openai.messages import Messages
from mlxd.daemon.api.openai.parsing import parse_chat
from mlxd.daemon.api.openai.tools import Tool
from mlxd.daemon.api.prompt_length import refuse_too_long
from mlxd.daemon.api.refusals import InvalidField
from mlxd.daemon.api.routes import Route, Scope
from mlxd.daemon.api.services import services_of
from mlxd.daemon.api.text_request import TextRequest, text_job
from mlxd.daemon.api.tool_use import MAX_TOOLS
from mlxd.daemon.engine_factory import context_length
from mlxd.engines.tokenizer import Tokenizer

API = "tokenize"
EXAMPLE = {"model": "qwen", "prompt": "What is the capital of France?"}


class TokenizeBody(Struct, frozen=True, kw_only=True):
    """POST /v1/tokenize: a `prompt`, or `messages` and what belongs to them. Null means the default."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    tools: Annotated[list[Tool], Meta(max_length=MAX_TOOLS)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class Tokens(Struct, frozen=True):
    """Token ids, how many there are and may be, and the text of each if that was asked for."""

    tokens: list[int]
    count: int
    max_model_len: int
    token_strs: list[str] | None = None


# What belongs to a chat; what it needs beside that is the same as for an answer.
_CHAT = ("model", "messages", "tools", "chat_template_kwargs")
_CHAT_ONLY = ("tools", "chat_template_kwargs", "add_generation_prompt")
FIELDS = FieldTable(
    TokenizeBody.__struct_fields__,
    refused={"chat_template": (), "continue_final_message": (False,), "mm_processor_kwargs": ({},)},
)


def routes() -> list[Route]:
    """This module's part of the API."""
    return [
        Route("POST", "/v1/tokenize", tokenize, Scope.INFER, body=TokenizeBody, answer=Tokens, example=EXAMPLE),
    ]


async def tokenize(request: web.Request) -> web.Response:
    """The tokens of a prompt or a chat. Its model is loaded for that if need be."""
    body, chat = await read_as(request, parse_tokenize)
    note_ignored(request, chat.ignored if chat is not None else ())
    job = _text_job(request, body) if chat is None else chat_job(request, chat, API)
    services, model = services_of(request), job.resolved.model
    most = context_length(services.registry.spec(model), services.settings.engine_for(model))
    inference = Inference(services, job)
    [prompt] = await inference.tokens()
    texts = None
    if body.return_token_strs:
        # off the event loop: the first one reads the whole vocabulary
        texts = await services.tokenizers.run(model, lambda: _texts(inference, prompt))
    answer = Tokens(list(prompt), len(prompt), most, texts)
    return json_answer(answer)


def parse_tokenize(raw: Mapping[str, Any]) -> tuple[TokenizeBody, ChatRequest | None]:
    """Check a body; it has a prompt if it is no chat. Raises InvalidField."""
    FIELDS.check(raw)
    body = convert(raw, TokenizeBody)
    return body, _chat(body, raw) if _is_chat(raw) else None


def _texts(inference: Inference, tokens: Sequence[int]) -> list[str]:
    return [token_text(inference.token_bytes(token)) for token in tokens]


def _is_chat(raw: Mapping[str, Any]) -> bool:
    """Whether there are messages; what belongs to them does not go with a prompt. Raises InvalidField."""
    has_prompt, has_messages = raw.get("prompt") is not None, raw.get("messages") is not None
    if not has_prompt and not has_messages:
        raise InvalidField("prompt: it is required, or messages in its place", "prompt")
    if has_prompt and has_messages:
        raise InvalidField("messages: there is a prompt as well; send one of them", "messages")
    for name in _CHAT_ONLY:
        if has_prompt and raw.get(name) is not None:
            raise InvalidField(f"{name} is for messages; leave it out with a prompt", name)
    return has_messages


def _text_job(request: web.Request, body: TokenizeBody) -> Job:
    prompt, special = body.prompt or "", body.add_special_tokens is not False
    job = text_job(request, TextRequest(body.model, (prompt,), AnswerOptions()), API)

    def prepare_plain(tokenizer: Tokenizer, context_length: int, _: object) -> Prepared:
        refuse_too_long(tokenizer, prompt, context_length)
        return Prepared([tokenizer.encode(prompt, special=False)])

    return job if special else replace(job, prepare=prepare_plain)


def _chat(body: TokenizeBody, raw: Mapping[str, Any]) -> ChatRequest:
    if body.add_special_tokens:
        message = "add_special_tokens: the chat template writes those of a chat; leave it out or send false"
        raise InvalidField(message, "add_special_tokens")
    chat = parse_chat({name: raw[name] for name in _CHAT if name in raw})
    if body.add_generation_prompt is False:
        return replace(chat, template={**chat.template, "add_generation_prompt": False})
    return chat
