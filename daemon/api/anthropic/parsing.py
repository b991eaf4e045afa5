"""From the body of an Anthropic call to a checked request, ready for a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from mlxd.daemon.api.answer_options import AnswerOptions
from mlxd.daemon.api.anthropic.bodies import (
    CountBody,
    JsonFormat,
    MessageBody,
    ThinkingAdaptive,
    ThinkingDisabled,
    ThinkingEnabled,
)
from mlxd.daemon.api.anthropic.fields import COUNT, MESSAGES, passed_over, refuse_foreign
from mlxd.daemon.api.anthropic.history import BILLING, History, has_billing, read_history
from mlxd.daemon.api.anthropic.tools import tool_use
from mlxd.daemon.api.body import convert
from mlxd.daemon.api.chat_request import ChatRequest
from mlxd.daemon.api.refusals import InvalidField
from mlxd.daemon.api.tool_use import ToolUse
from mlxd.daemon.api.wanted_guide import WantedGuide, schema_guide
from mlxd.daemon.settings import SamplingSettings

# Budgets below these many tokens are this effort.
BUDGETS: tuple[tuple[int, str], ...] = ((4096, "low"), (16384, "medium"))
ENOUGH = "high"
ADAPTIVE = "medium"


@dataclass(frozen=True, slots=True)
class MessageRequest:
    """A checked call: the chat, whether its thinking is shown, and which fields of the body are passed over."""

    chat: ChatRequest
    shows_thinking: bool
    ignored: tuple[str, ...]


def parse_message(body: Mapping[str, Any]) -> MessageRequest:
    """Check the body of a call for a message. Raises InvalidField and UnsupportedCapability."""
    refuse_foreign(body)
    MESSAGES.check(body)
    message = convert(body, MessageBody)
    chat = _chat(message, AnswerOptions(_sampling(message), stream=bool(message.stream), guide=_form(message)))
    _check_forms(chat.tools, chat.options.guide)
    display = message.thinking.display if isinstance(message.thinking, ThinkingEnabled | ThinkingAdaptive) else None
    return MessageRequest(chat, display != "omitted", _ignored(message, tuple(passed_over(MESSAGES, body))))


def parse_count(body: Mapping[str, Any]) -> MessageRequest:
    """Check the body of a call for a count: it may be that of the message. What only shapes an answer is left out.

    Raises InvalidField and UnsupportedCapability.
    """
    refuse_foreign(body)
    COUNT.check(body)
    count = convert(body, CountBody)
    chat = _chat(count, AnswerOptions())
    chat = replace(chat, tools=replace(chat.tools, must_call=False, name=None))
    return MessageRequest(chat, shows_thinking=True, ignored=_ignored(count, tuple(passed_over(COUNT, body))))


def _chat(body: CountBody, options: AnswerOptions) -> ChatRequest:
    history = read_history(body.system, body.messages)
    tools = tool_use(body.tools or (), body.tool_choice)
    if history.continues:
        _check_beginning(body, history, tools)
    effort, param = _effort(body)
    return ChatRequest(
        model=body.model,
        messages=history.messages,
        options=options,
        tools=tools,
        effort=effort,
        effort_param=param,
        effort_is_wish=True,
        continues=history.continues,
    )


def _effort(body: CountBody) -> tuple[str | None, str]:
    """How much the model is to think, and the field that says so."""
    asked = body.output_config.effort if body.output_config is not None else None
    match body.thinking:
        case ThinkingDisabled():
            return "none", "thinking"
        case ThinkingEnabled(budget):
            by_budget = next((effort for below, effort in BUDGETS if budget < below), ENOUGH)
            return asked or by_budget, "thinking"
        case ThinkingAdaptive():
            return asked or ADAPTIVE, "thinking"
        case None:
            return asked, "output_config.effort"


def _sampling(body: MessageBody) -> SamplingSettings:
    stops = body.stop_sequences
    return SamplingSettings(
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        max_tokens=body.max_tokens,
        stop=None if stops is None else tuple(stops),
    )


def _form(body: CountBody) -> WantedGuide | None:
    asked = _format(body)
    return None if asked is None else schema_guide(asked[0].schema, f"{asked[1]}.schema")


def _format(body: CountBody) -> tuple[JsonFormat, str] | None:
    """The form of the answer and the field that asks for it, by its name or by the older one. Raises InvalidField."""
    inside = body.output_config.format if body.output_config is not None else None
    if inside is not None and body.output_format is not None:
        message = "output_format is the older name of output_config.format; send one of them"
        raise InvalidField(message, "output_format")
    if inside is not None:
        return inside, "output_config.format"
    return None if body.output_format is None else (body.output_format, "output_format")


def _check_forms(tools: ToolUse, form: WantedGuide | None) -> None:
    """An answer that must be a call has no other form."""
    if tools.must_call and form is not None:
        raise InvalidField(f"tool_choice: {form.param} cannot be combined with a call that must be made", "tool_choice")


def _check_beginning(body: CountBody, history: History, tools: ToolUse) -> None:
    """A thought, a form and a call that must be made would have to come before what the client has written."""
    clashes = {
        "thinking": isinstance(body.thinking, ThinkingEnabled | ThinkingAdaptive),
        "tool_choice": tools.must_call,
        "output_config.format": _format(body) is not None,
    }
    for name, clash in clashes.items():
        if clash:
            where = history.ending
            raise InvalidField(f"{where}: the answer cannot begin as said here with {name}; end with the user", where)


def _ignored(body: CountBody, fields: tuple[str, ...]) -> tuple[str, ...]:
    return (*fields, f"system.{BILLING.removesuffix(':')}") if has_billing(body.system) else fields
