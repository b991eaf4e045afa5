"""One question over each facade, whole and streamed, and what the answer says in every facade's words."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Said:
    """An answer taken out of its format. `calls` are names with their arguments."""

    text: str
    reasoning: str
    calls: tuple[tuple[str, Any], ...]
    prompt_tokens: int
    completion_tokens: int
    ended_by: str


@dataclass(frozen=True)
class Facade:
    """Where to ask, how a question is written, and how its answer is read, whole or as the events of a stream."""

    path: str
    body: Callable[[Json], dict[str, Any]]
    whole: Callable[[Json], Said]
    streamed: Callable[[Sequence[Json]], Said]


def question(text: str, *, system: str = "", max_tokens: int = 64, tool: Json | None = None) -> dict[str, Any]:
    """What is asked, in no facade's words; a tool has a name, a description and parameters."""
    return {"text": text, "system": system, "max_tokens": max_tokens, "tool": tool}


def events(text: str) -> Iterator[Json]:
    """The JSON of a stream's events, of server-sent events as of lines."""
    for line in text.splitlines():
        data = line.removeprefix("data: ")
        if data.startswith("{"):
            yield json.loads(data)


# -- OpenAI ------------------------------------------------------------------------------------------------------


def _openai_messages(asked: Json) -> list[Json]:
    system = [{"role": "system", "content": asked["system"]}] if asked["system"] else []
    return [*system, {"role": "user", "content": asked["text"]}]


def _openai_tools(asked: Json) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": asked["tool"]}]} if asked["tool"] else {}


def _openai_body(asked: Json) -> dict[str, Any]:
    rest = {"temperature": 0, "max_tokens": asked["max_tokens"], "stream_options": {"include_usage": True}}
    return {"messages": _openai_messages(asked), **rest, **_openai_tools(asked)}


def _openai_said(message: Json, reason: str, usage: Json) -> Said:
    calls = [(each["function"]["name"], json.loads(each["function"]["arguments"])) for each in message["tool_calls"]]
    used = usage["prompt_tokens"], usage["completion_tokens"]
    return Said(message["content"] or "", message["reasoning_content"], tuple(calls), *used, reason)


def _openai_whole(answer: Json) -> Said:
    choice = answer["choices"][0]
    message = {"tool_calls": [], "reasoning_content": "", **choice["message"]}
    return _openai_said(message, choice["finish_reason"], answer["usage"])


def _openai_streamed(chunks: Sequence[Json]) -> Said:
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    calls: dict[int, Any] = {}
    for part in (part for delta in deltas for part in delta.get("tool_calls", [])):
        function = calls.setdefault(part["index"], {"function": {"name": "", "arguments": ""}})["function"]
        for key, value in part["function"].items():
            function[key] += value
    message = {
        "content": "".join(delta.get("content") or "" for delta in deltas),
        "reasoning_content": "".join(delta.get("reasoning_content") or "" for delta in deltas),
        "tool_calls": list(calls.values()),
    }
    reasons = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]
    return _openai_said(message, reasons[-1], chunks[-1]["usage"])


# -- Anthropic ---------------------------------------------------------------------------------------------------

_ANTHROPIC_REASONS = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_calls"}


def _anthropic_body(asked: Json) -> dict[str, Any]:
    body = {
        "messages": [{"role": "user", "content": asked["text"]}],
        "max_tokens": asked["max_tokens"],
        "temperature": 0,
    }
    if asked["system"]:
        body["system"] = asked["system"]
    if asked["tool"]:
        tool = {key: value for key, value in asked["tool"].items() if key != "parameters"}
        body["tools"] = [{**tool, "input_schema": asked["tool"]["parameters"]}]
    return body


def _anthropic_whole(answer: Json) -> Said:
    blocks = answer["content"]
    usage = answer["usage"]
    return Said(
        text="".join(block["text"] for block in blocks if block["type"] == "text"),
        reasoning="".join(block["thinking"] for block in blocks if block["type"] == "thinking"),
        calls=tuple((block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"),
        prompt_tokens=usage["input_tokens"] + usage["cache_read_input_tokens"],
        completion_tokens=usage["output_tokens"],
        ended_by=_ANTHROPIC_REASONS[answer["stop_reason"]],
    )


def _anthropic_streamed(sent: Sequence[Json]) -> Said:
    started = next(event for event in sent if event["type"] == "message_start")["message"]
    blocks: dict[int, dict[str, Any]] = {}
    for event in sent:
        if event["type"] == "content_block_start":
            blocks[event["index"]] = {**event["content_block"], "json": ""}
        if event["type"] == "content_block_delta":
            delta = event["delta"]
            key = {"input_json_delta": "json", "text_delta": "text", "thinking_delta": "thinking"}.get(delta["type"])
            if key is not None:
                blocks[event["index"]][key] += delta["partial_json" if key == "json" else key]
    for block in blocks.values():
        if block["type"] == "tool_use":
            block["input"] = json.loads(block["json"] or "{}")
    last = next(event for event in sent if event["type"] == "message_delta")
    usage = {**started["usage"], **last["usage"]}
    return _anthropic_whole({"content": list(blocks.values()), "usage": usage, **last["delta"]})


# -- Ollama ------------------------------------------------------------------------------------------------------


def _ollama_body(asked: Json) -> dict[str, Any]:
    options = {"temperature": 0, "num_predict": asked["max_tokens"]}
    return {"messages": _openai_messages(asked), "options": options, **_openai_tools(asked)}


def _ollama_whole(answer: Json) -> Said:
    return _ollama_streamed([answer])


def _ollama_streamed(lines: Sequence[Json]) -> Said:
    messages = [line["message"] for line in lines]
    calls = [call["function"] for message in messages for call in message.get("tool_calls") or []]
    last = lines[-1]
    return Said(
        text="".join(message["content"] for message in messages),
        reasoning="".join(message.get("thinking") or "" for message in messages),
        calls=tuple((call["name"], call["arguments"]) for call in calls),
        prompt_tokens=last["prompt_eval_count"],
        completion_tokens=last["eval_count"],
        # Ollama has no word for an answer that is calls
        ended_by="tool_calls" if calls else last["done_reason"],
    )


# -- Responses ---------------------------------------------------------------------------------------------------


def _responses_body(asked: Json) -> dict[str, Any]:
    body = {"input": asked["text"], "max_output_tokens": asked["max_tokens"], "temperature": 0}
    if asked["system"]:
        body["instructions"] = asked["system"]
    if asked["tool"]:
        body["tools"] = [{"type": "function", **asked["tool"]}]
    return body


def _responses_whole(answer: Json) -> Said:
    items = answer["output"]
    calls = tuple((item["name"], json.loads(item["arguments"])) for item in items if item["type"] == "function_call")
    contents = [(item["type"], part) for item in items for part in item.get("content") or []]
    ended = "length" if answer["status"] == "incomplete" else "stop"
    return Said(
        text="".join(part["text"] for kind, part in contents if kind == "message"),
        reasoning="".join(part["text"] for kind, part in contents if kind == "reasoning"),
        calls=calls,
        prompt_tokens=answer["usage"]["input_tokens"],
        completion_tokens=answer["usage"]["output_tokens"],
        ended_by="tool_calls" if calls else ended,
    )


def _responses_streamed(sent: Sequence[Json]) -> Said:
    assert [event["sequence_number"] for event in sent] == list(range(len(sent)))
    said = _responses_whole(sent[-1]["response"])
    text = "".join(event["delta"] for event in sent if event["type"] == "response.output_text.delta")
    assert text == said.text
    return said


FACADES: Mapping[str, Facade] = {
    "openai": Facade("/v1/chat/completions", _openai_body, _openai_whole, _openai_streamed),
    "anthropic": Facade("/v1/messages", _anthropic_body, _anthropic_whole, _anthropic_streamed),
    "ollama": Facade("/api/chat", _ollama_body, _ollama_whole, _ollama_streamed),
    "responses": Facade("/v1/responses", _responses_body, _responses_whole, _responses_streamed),
}
