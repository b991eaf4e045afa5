"""From the body of an Ollama generation call to a checked request, ready for a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mlxd.daemon.api.answer_options import AnswerOptions
from mlxd.daemon.api.body import convert
from mlxd.daemon.api.chat_request import ChatRequest
from mlxd.daemon.api.ollama.bodies import ChatBody, Format, GenerateBody, GenerationBody, Think
from mlxd.daemon.api.ollama.fields import CHAT, GENERATE, check
from mlxd.daemon.api.ollama.keep_alive import parse_keep_alive
from mlxd.daemon.api.ollama.messages import template_messages, with_text
from mlxd.daemon.api.ollama.options import Options, sampling
from mlxd.daemon.api.ollama.tools import tool_use
from mlxd.daemon.api.reasoning_effort import ON
from mlxd.daemon.api.refusals import InvalidField
from mlxd.daemon.api.text_request import TextRequest
from mlxd.daemon.api.wanted_guide import ANY_OBJECT, WantedGuide, schema_guide
from mlxd.registry.residency import KeepAlive

Messages = tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Asked:
    """A checked call. Without a `request` the model is only loaded, or unloaded if it is not to be kept alive."""

    model: str | None
    request: ChatRequest | TextRequest | None
    keep_alive: KeepAlive | None
    stream: bool
    logprobs: bool


def parse_chat(body: Mapping[str, Any]) -> Asked:
    """Check the body of a chat call. Raises InvalidField."""
    check(body, CHAT)
    chat = convert(body, ChatBody)
    messages, tools = template_messages(chat.messages or ()), tool_use(chat.tools)
    request = ChatRequest(
        chat.model, messages, _options(chat), tools=tools, effort=_effort(chat.think), effort_param="think"
    )
    return _asked(chat, request if messages else None)


def parse_generate(body: Mapping[str, Any]) -> Asked:
    """Check the body of a generate call. Raises InvalidField."""
    check(body, GENERATE)
    generate = convert(body, GenerateBody)
    if generate.images and not generate.prompt:
        raise InvalidField("images: they need a prompt that says what to do with them", "images")
    request = _continued(generate) if generate.raw else _told(generate)
    return _asked(generate, request if generate.prompt else None)


def _asked(body: GenerationBody, request: ChatRequest | TextRequest | None) -> Asked:
    return Asked(
        model=body.model,
        request=request,
        keep_alive=parse_keep_alive(body.keep_alive),
        stream=body.stream is not False,
        logprobs=bool(body.logprobs),
    )


def _told(body: GenerateBody) -> ChatRequest:
    """A prompt as a user's message, after the system's if there is one."""
    system: Messages = ({"role": "system", "content": body.system},) if body.system else ()
    messages: Messages = (*system, {"role": "user", "content": with_text(body.images, "images", body.prompt or "")})
    return ChatRequest(
        body.model, messages, _options(body), effort=_effort(body.think), effort_param="think", param="prompt"
    )


def _continued(body: GenerateBody) -> TextRequest:
    """A prompt that no template is put around."""
    if body.images:
        raise InvalidField("images: a raw prompt has no place for them; leave raw out", "images")
    for name, value in (("system", body.system), ("think", body.think)):
        if value:
            raise InvalidField(f"{name}: a raw prompt has no template that would say it; put it into the prompt", name)
    return TextRequest(body.model, (body.prompt or "",), _options(body))


def _options(body: GenerationBody) -> AnswerOptions:
    return AnswerOptions(
        sampling=sampling(body.options or Options()),
        stream=body.stream is not False,
        logprobs=_logprobs(body),
        guide=_guide(body.format),
    )


def _logprobs(body: GenerationBody) -> int | None:
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise InvalidField("top_logprobs needs logprobs: true", "top_logprobs")
    return None


def _guide(wanted: Format | None) -> WantedGuide | None:
    if isinstance(wanted, dict):
        return schema_guide(wanted, "format")
    return WantedGuide(ANY_OBJECT, "format") if wanted == "json" else None


def _effort(think: Think | None) -> str | None:
    if isinstance(think, bool):
        return ON if think else "none"
    return think
