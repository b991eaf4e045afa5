"""From the body of an OpenAI generation call to a checked request, ready for a model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mlxd.daemon.api import openai_fields
from mlxd.daemon.api.body import convert
from mlxd.daemon.api.openai_messages import template_messages
from mlxd.daemon.api.openai_types import ChatBody, CompletionBody, GenerationBody, StreamOptions
from mlxd.daemon.api.refusals import InvalidField
from mlxd.daemon.settings import SamplingSettings

SEED_MASK = 2**64 - 1

_TOKEN_ID = re.compile(r"[0-9]{1,10}")
# Arguments of the template call itself; a request may only add variables.
_RESERVED_VARIABLES = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "documents",
        "max_length",
        "messages",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "sanitize_control_tokens",
        "self",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """How an answer is made and sent; unset sampling values are left to the model's own."""

    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    stream: bool = False
    include_usage: bool = False


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A checked chat request: messages and variables for the model's template."""

    model: str | None
    messages: tuple[Mapping[str, Any], ...]
    template: Mapping[str, Any]
    options: AnswerOptions


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A checked completion request: the prompt is text, or token ids."""

    model: str | None
    prompt: str | tuple[int, ...]
    options: AnswerOptions


def parse_chat(body: Mapping[str, Any]) -> ChatRequest:
    """Check the body of a chat call. Raises InvalidField and UnsupportedCapability."""
    openai_fields.check_fields(body, ChatBody.__struct_fields__, openai_fields.CHAT)
    chat = convert(body, ChatBody)
    if chat.store:
        raise InvalidField("store is not supported here; leave it out or send false", "store")
    template = chat.chat_template_kwargs or {}
    for name in sorted(_RESERVED_VARIABLES.intersection(template)):
        raise InvalidField(f"chat_template_kwargs may not set {name}", f"chat_template_kwargs.{name}")
    limit = chat.max_completion_tokens
    if limit is not None and chat.max_tokens not in (None, limit):
        raise InvalidField("max_tokens and max_completion_tokens differ; send one of them", "max_tokens")
    options = _options(chat, chat.max_tokens if limit is None else limit)
    return ChatRequest(chat.model, template_messages(chat.messages), template, options)


def parse_completion(body: Mapping[str, Any]) -> CompletionRequest:
    """Check the body of a completion call. Raises InvalidField."""
    openai_fields.check_fields(body, CompletionBody.__struct_fields__, openai_fields.COMPLETIONS)
    completion = convert(body, CompletionBody)
    return CompletionRequest(completion.model, _prompt(completion.prompt), _options(completion, completion.max_tokens))


def _options(body: GenerationBody, max_tokens: int | None) -> AnswerOptions:
    stream = body.stream_options or StreamOptions()
    for name, wanted in (
        ("include_obfuscation", stream.include_obfuscation),
        ("continuous_usage_stats", stream.continuous_usage_stats),
    ):
        if wanted:
            raise InvalidField(f"stream_options.{name} is not supported here", f"stream_options.{name}")
    sampling = SamplingSettings(
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        min_p=body.min_p,
        seed=_seed(body.seed),
        max_tokens=max_tokens,
        stop=(body.stop,) if isinstance(body.stop, str) else _tuple(body.stop),
        repetition_penalty=body.repetition_penalty,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
    )
    return AnswerOptions(sampling, _biases(body.logit_bias or {}), bool(body.stream), bool(stream.include_usage))


def _tuple(values: list[str] | None) -> tuple[str, ...] | None:
    return None if values is None else tuple(values)


def _seed(seed: int | None) -> int | None:
    if seed is None:
        return None
    if not -(2**63) <= seed <= SEED_MASK:
        raise InvalidField("seed: expected an integer of at most 64 bits", "seed")
    return seed & SEED_MASK


def _biases(biases: Mapping[str, float]) -> dict[int, float]:
    for token in biases:
        if not _TOKEN_ID.fullmatch(token):
            raise InvalidField("logit_bias: expected token ids as keys", "logit_bias")
    return {int(token): bias for token, bias in biases.items()}


def _prompt(prompt: str | Sequence[str | int | list[int]]) -> str | tuple[int, ...]:
    if isinstance(prompt, str):
        return prompt
    first = prompt[0]
    if isinstance(first, int):
        return _token_ids(prompt, "prompt")
    if len(prompt) > 1:
        raise InvalidField("prompt: several prompts in one request are not supported; send one request each", "prompt")
    return first if isinstance(first, str) else _token_ids(first, "prompt[0]")


def _token_ids(tokens: Sequence[str | int | list[int]], place: str) -> tuple[int, ...]:
    ids = tuple(token for token in tokens if isinstance(token, int))
    if not ids or len(ids) < len(tokens):
        raise InvalidField(f"{place}: expected token ids, at least one and nothing else", place)
    return ids
