"""From the body of an OpenAI generation call to a checked request, ready for a model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlxd.daemon.api.answer_options import SEED_MASK, AnswerOptions
from mlxd.daemon.api.body import convert
from mlxd.daemon.api.chat_request import ChatRequest
from mlxd.daemon.api.openai.bodies import MAX_PROMPTS, ChatBody, CompletionBody, GenerationBody, StreamOptions
from mlxd.daemon.api.openai.fields import CHAT, COMPLETIONS
from mlxd.daemon.api.openai.guides import wanted_guide
from mlxd.daemon.api.openai.messages import has_detail, template_messages
from mlxd.daemon.api.openai.tools import tool_use
from mlxd.daemon.api.refusals import InvalidField
from mlxd.daemon.api.text_request import TextRequest
from mlxd.daemon.api.tool_use import ToolUse
from mlxd.daemon.settings import SamplingSettings

DETAIL = "messages.content.image_url.detail"

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
class CompletionRequest:
    """A checked completion request. With `echo` answers begin with their prompt."""

    text: TextRequest
    echo: bool = False


def parse_chat(body: Mapping[str, Any]) -> ChatRequest:
    """Check the body of a chat call. Raises InvalidField and UnsupportedCapability."""
    CHAT.check(body)
    chat = convert(body, ChatBody)
    if chat.store:
        raise InvalidField("store is not supported here; leave it out or send false", "store")
    options = _options(chat, _chat_limit(chat), _chat_logprobs(chat))
    parallel = chat.parallel_tool_calls is not False
    tools = tool_use(chat.tools, body.get("tools"), chat.tool_choice, parallel)
    _check_forms(tools, options)
    messages = template_messages(chat.messages)
    continues = _continues(chat, messages[-1], tools, options)
    if continues:
        messages = (*messages[:-1], {**messages[-1], "content": messages[-1]["content"].rstrip()})
    return ChatRequest(
        model=chat.model,
        messages=messages,
        options=options,
        template=_template(chat),
        tools=tools,
        effort=chat.reasoning_effort,
        continues=continues,
        ignored=(DETAIL,) if has_detail(chat.messages) else (),
    )


def parse_completion(body: Mapping[str, Any]) -> CompletionRequest:
    """Check the body of a completion call. Raises InvalidField."""
    COMPLETIONS.check(body)
    completion = convert(body, CompletionBody)
    options = _options(completion, completion.max_tokens, completion.logprobs)
    prompts = _prompts(completion.prompt)
    if len(prompts) * options.n > MAX_PROMPTS:
        raise InvalidField(f"n: at most {MAX_PROMPTS} answers are made of all prompts together", "n")
    echo = bool(completion.echo)
    if echo and options.logprobs is not None:
        raise InvalidField("echo: a prompt has no logprobs here; leave out echo or logprobs", "echo")
    if echo and not all(isinstance(prompt, str) for prompt in prompts):
        raise InvalidField("echo needs prompts that are text; leave it out with token ids", "echo")
    return CompletionRequest(TextRequest(completion.model, prompts, options), echo)


def _continues(chat: ChatBody, last: Mapping[str, Any], tools: ToolUse, options: AnswerOptions) -> bool:
    """Whether the answer goes on where the last message stops. Raises InvalidField where none could."""
    if not chat.continue_final_message:
        if chat.add_generation_prompt is False:
            message = "add_generation_prompt: an answer needs it, unless continue_final_message is true; leave it out"
            raise InvalidField(message, "add_generation_prompt")
        return False
    param = "continue_final_message"
    if chat.add_generation_prompt:
        raise InvalidField(f"{param} cannot be combined with add_generation_prompt; leave that out", param)
    if last["role"] != "assistant" or "tool_calls" in last or not last["content"].strip():
        raise InvalidField(f"{param} needs a last message of role assistant with text and no calls", param)
    form = options.guide.param if options.guide is not None else "tool_choice"
    if options.guide is not None or tools.must_call:
        raise InvalidField(f"{param} cannot be combined with {form}, which is about the whole of an answer", param)
    return True


def _template(chat: ChatBody) -> Mapping[str, Any]:
    template = chat.chat_template_kwargs or {}
    for name in sorted(_RESERVED_VARIABLES.intersection(template)):
        raise InvalidField(f"chat_template_kwargs may not set {name}", f"chat_template_kwargs.{name}")
    if chat.reasoning_effort is not None and "reasoning_effort" in template:
        where = "chat_template_kwargs.reasoning_effort"
        raise InvalidField("reasoning_effort and its template variable are the same; send one of them", where)
    return template


def _chat_limit(chat: ChatBody) -> int | None:
    limit = chat.max_completion_tokens
    if limit is not None and chat.max_tokens not in (None, limit):
        raise InvalidField("max_tokens and max_completion_tokens differ; send one of them", "max_tokens")
    return chat.max_tokens if limit is None else limit


def _chat_logprobs(chat: ChatBody) -> int | None:
    if chat.logprobs:
        return chat.top_logprobs or 0
    if chat.top_logprobs:
        raise InvalidField("top_logprobs needs logprobs: true", "top_logprobs")
    return None


def _check_forms(tools: ToolUse, options: AnswerOptions) -> None:
    """An answer that must be a call has no other form."""
    if not tools.must_call:
        return
    _refuse_with_form(options, "tool_choice")
    if options.guide is not None:
        param = options.guide.param
        raise InvalidField(f"tool_choice cannot be combined with {param}; send one of them", "tool_choice")


def _options(body: GenerationBody, max_tokens: int | None, logprobs: int | None) -> AnswerOptions:
    stream = body.stream_options or StreamOptions()
    for name, wanted in (
        ("include_obfuscation", stream.include_obfuscation),
        ("continuous_usage_stats", stream.continuous_usage_stats),
    ):
        if wanted:
            raise InvalidField(f"stream_options.{name} is not supported here", f"stream_options.{name}")
    min_tokens = body.min_tokens or 0
    if max_tokens is not None and min_tokens > max_tokens:
        raise InvalidField(f"min_tokens: {min_tokens} is more than max_tokens allows, {max_tokens}", "min_tokens")
    options = AnswerOptions(
        sampling=_sampling(body, max_tokens),
        logit_bias=_biases(body.logit_bias or {}),
        stream=bool(body.stream),
        include_usage=bool(stream.include_usage),
        n=body.n or 1,
        min_tokens=min_tokens,
        ignore_eos=bool(body.ignore_eos),
        logprobs=logprobs,
        guide=wanted_guide(body),
    )
    if options.guide is not None:
        _refuse_with_form(options, options.guide.param)
    return options


def _refuse_with_form(options: AnswerOptions, form: str) -> None:
    """A form ends where it ends: nothing but an end token can follow."""
    for name, wanted in (("min_tokens", options.min_tokens), ("ignore_eos", options.ignore_eos)):
        if wanted:
            raise InvalidField(f"{name} cannot be combined with {form}, which says itself where the answer ends", name)


def _sampling(body: GenerationBody, max_tokens: int | None) -> SamplingSettings:
    return SamplingSettings(
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        min_p=body.min_p,
        xtc_probability=body.xtc_probability,
        xtc_threshold=body.xtc_threshold,
        seed=_seed(body.seed),
        max_tokens=max_tokens,
        stop=(body.stop,) if isinstance(body.stop, str) else _tuple(body.stop),
        repetition_penalty=body.repetition_penalty,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
    )


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


def _prompts(prompt: str | Sequence[str | int | list[int]]) -> tuple[str | tuple[int, ...], ...]:
    if isinstance(prompt, str):
        return (prompt,)
    if isinstance(prompt[0], int):
        return (_token_ids(prompt, "prompt"),)
    if len(prompt) > MAX_PROMPTS:
        raise InvalidField(f"prompt: at most {MAX_PROMPTS} prompts are taken in one request", "prompt")
    return tuple(_one_prompt(each, f"prompt[{index}]") for index, each in enumerate(prompt))


def _one_prompt(prompt: str | int | list[int], place: str) -> str | tuple[int, ...]:
    if isinstance(prompt, int):
        raise InvalidField(f"{place}: expected text or an array of token ids, as before it", place)
    return prompt if isinstance(prompt, str) else _token_ids(prompt, place)


def _token_ids(tokens: Sequence[str | int | list[int]], place: str) -> tuple[int, ...]:
    ids = tuple(token for token in tokens if isinstance(token, int))
    if not ids or len(ids) < len(tokens):
        raise InvalidField(f"{place}: expected token ids, at least one and nothing else", place)
    return ids
