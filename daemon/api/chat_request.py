"""A chat as every facade hands it on, and the job that answers it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web

from mlxd.daemon.api.answer_options import AnswerOptions
from mlxd.daemon.api.asked_model import max_wait_of, resolve_model
from mlxd.daemon.api.caller import key_of
from mlxd.daemon.api.images import check_takes_images
from mlxd.daemon.api.inference import Job, Prepared
from mlxd.daemon.api.middleware import request_id_of
from mlxd.daemon.api.prompt_length import LONG_TEXT, refuse_too_long
from mlxd.daemon.api.reasoning_effort import effort_variables
from mlxd.daemon.api.refusals import UnsupportedCapability
from mlxd.daemon.api.sent_images import images_in, with_images, without_images
from mlxd.daemon.api.services import services_of
from mlxd.daemon.api.tool_use import ToolUse
from mlxd.daemon.catalog import preset_for
from mlxd.engines.prompt_images import EncodedPrompt, ImageInput
from mlxd.engines.tokenizer import Messages, Tokenizer
from mlxd.engines.types import ChatFormat

_CONTINUED: Mapping[str, Any] = {"add_generation_prompt": False, "continue_final_message": True}


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A checked chat: messages and variables for the model's template, and the tools that it is shown.

    Messages are in OpenAI's form, which templates read, with calls' arguments as objects. Their content is text, or a
    list with a SentImage in the place of each image. `effort` is how much the
    model is to think, in the words of `reasoning_effort`; `effort_param` is the field that says so,
    `param` the one that holds the messages. A template that knows no effort refuses one, unless it is only a wish.
    With `continues` the answer goes on where the last message, the assistant's, stops. `ignored` names what is in the
    fields and changes nothing.
    """

    model: str | None
    messages: tuple[Mapping[str, Any], ...]
    options: AnswerOptions
    template: Mapping[str, Any] = field(default_factory=dict)
    tools: ToolUse = field(default_factory=ToolUse)
    effort: str | None = None
    effort_param: str = "reasoning_effort"
    effort_is_wish: bool = False
    continues: bool = False
    param: str = "messages"
    ignored: tuple[str, ...] = ()


def chat_job(request: web.Request, chat: ChatRequest, api: str) -> Job:
    """What answers a chat; `api` is the facade's name in metrics and lists.

    Raises InvalidField, Forbidden, UnknownModel, AmbiguousModel, and UnsupportedCapability for images that the model
    does not take.
    """
    services = services_of(request)
    resolved = resolve_model(request, chat.model)
    preset = preset_for(services.settings, resolved.model, resolved.preset)
    defaults = preset.template if preset is not None else {}
    images = images_in(chat.messages)
    if images:
        check_takes_images(services.registry.spec(resolved.model), images[0].param)

    def prepare(tokenizer: Tokenizer, context_length: int, files: Sequence[ImageInput]) -> Prepared:
        if files and not tokenizer.takes_images:
            param = files[0].param
            raise UnsupportedCapability(f"{param}: model {resolved.model} is loaded without what reads images", param)
        chat.tools.check(tokenizer)
        effort = effort_variables(tokenizer, chat.effort, chat.effort_param, is_wish=chat.effort_is_wish)
        ending = _CONTINUED if chat.continues else {}
        template = {**defaults, **effort, **chat.template, **ending}
        messages = with_images(chat.messages, files) if files else chat.messages
        encoded = _encoded(chat, messages, template, tokenizer, context_length)
        return Prepared([encoded.tokens], chat.tools.guide(tokenizer, chat.options.guide), encoded.images)

    return Job(
        id=request_id_of(request),
        api=api,
        resolved=resolved,
        options=chat.options,
        prepare=prepare,
        images=images,
        prompt_param=chat.param,
        continues_text=chat.continues,
        chat=ChatFormat(chat.tools.tools, chat.tools.max_calls),
        max_wait=max_wait_of(request),
        key=key_of(request),
        shown=lambda: msgspec.json.encode(without_images(chat.messages)).decode(),
    )


def _encoded(
    chat: ChatRequest, messages: Messages, template: Mapping[str, Any], tokenizer: Tokenizer, context_length: int
) -> EncodedPrompt:
    tools = chat.tools.tools or None
    texts = without_images(messages)
    if len(msgspec.json.encode((texts, template, tools))) > LONG_TEXT:
        refuse_too_long(tokenizer, tokenizer.render_chat(texts, template, tools), context_length)
    return tokenizer.encode_prompt(messages, template, tools)
