"""Asks for one chat answer and shows it while it is generated."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from mlxd.daemon.cli.answers import failure_from
from mlxd.daemon.cli.client import DaemonClient
from mlxd.daemon.cli.failures import CommandFailed
from mlxd.daemon.cli.screen import AnswerScreen
from mlxd.daemon.cli.sse import Comment, SseParser
from mlxd.daemon.cli.views import duration

_PATH = "/v1/chat/completions"
_DONE = "[DONE]"
_ERROR_STATUS = 500
# Seconds of a wait below which it is not told.
_WORTH_SAYING = 0.01


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """One message of a conversation; `images` are data URLs that come before its text."""

    role: str
    content: str
    images: tuple[str, ...] = ()

    def message(self) -> dict[str, Any]:
        """The message as the API takes it."""
        if not self.images:
            return {"role": self.role, "content": self.content}
        images = [{"type": "image_url", "image_url": {"url": url}} for url in self.images]
        return {"role": self.role, "content": [*images, {"type": "text", "text": self.content}]}


@dataclass(frozen=True, slots=True)
class Sampling:
    """What the command line says about sampling; None leaves it to the daemon. Tokens and temperature."""

    max_tokens: int | None = None
    temperature: float | None = None

    def given(self) -> dict[str, int | float]:
        """The request's fields for the values that are set."""
        fields = {"max_tokens": self.max_tokens, "temperature": self.temperature}
        return {name: value for name, value in fields.items() if value is not None}


class _Delta(msgspec.Struct, frozen=True):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct, frozen=True):
    delta: _Delta = _Delta()


class _Cached(msgspec.Struct, frozen=True):
    cached_tokens: int = 0


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Cached | None = None


class _Vendor(msgspec.Struct, frozen=True):
    queue_s: float = 0.0
    load_s: float = 0.0
    ttft_s: float | None = None
    decode_tps: float | None = None


class _Chunk(msgspec.Struct, frozen=True):
    choices: tuple[_Choice, ...] = ()
    usage: _Usage | None = None
    mlxd: _Vendor | None = None

    def statistics(self) -> str | None:
        """How the answer came about, in a line; None of what is not the last chunk."""
        if self.usage is None:
            return None
        cached = self.usage.prompt_tokens_details
        parts = [
            f"{self.usage.prompt_tokens} tokens asked"
            + (f" ({cached.cached_tokens} cached)" if cached is not None and cached.cached_tokens else ""),
            f"{self.usage.completion_tokens} answered",
        ]
        return ", ".join([*parts, *(_times(self.mlxd) if self.mlxd is not None else ())])


async def show_answer(
    client: DaemonClient,
    model: str,
    turns: list[ChatTurn],
    sampling: Sampling,
    screen: AnswerScreen,
    *,
    counts: bool = False,
) -> str | None:
    """Stream the answer onto the screen; ending early, by an error or a cancel, keeps what is there.

    Gives what there is to say of it, if the daemon is to count. Raises CommandFailed: before the answer, within it, or
    when it stops without its end.
    """
    messages = [turn.message() for turn in turns]
    body: dict[str, Any] = {"model": model, "messages": messages, "stream": True, **sampling.given()}
    if counts:
        body["stream_options"] = {"include_usage": True}
    try:
        async with client.stream(_PATH, body) as chunks:
            return await _show(chunks, screen, client.url)
    finally:
        screen.end()


async def _show(chunks: AsyncIterator[bytes], screen: AnswerScreen, url: str) -> str | None:
    parser, statistics = SseParser(), None
    async for chunk in chunks:
        for event in parser.feed(chunk):
            if isinstance(event, Comment):
                screen.note(event.text)
            elif event.data == _DONE:
                return statistics
            else:
                new = _chunk(event.data, url)
                statistics = new.statistics() or statistics
                deltas = [choice.delta for choice in new.choices]
                screen.think("".join(delta.reasoning_content or "" for delta in deltas))
                screen.write("".join(delta.content or "" for delta in deltas))
    raise CommandFailed(f"the daemon at {url} ended the answer before it was complete; its log says why")


def _times(vendor: _Vendor) -> Iterator[str]:
    if vendor.load_s:
        yield f"loaded in {duration(vendor.load_s)}"
    elif vendor.queue_s >= _WORTH_SAYING:
        yield f"waited {duration(vendor.queue_s)}"
    if vendor.ttft_s is not None:
        yield f"first token after {duration(vendor.ttft_s)}"
    if vendor.decode_tps:
        yield f"{vendor.decode_tps:.1f} tokens/s"


def _chunk(data: str, url: str) -> _Chunk:
    """What is new in one event. Raises the failure that an error event carries."""
    answer = _json(data)
    if isinstance(answer, dict) and "error" in answer:
        raise failure_from(_ERROR_STATUS, answer, url)
    try:
        return msgspec.convert(answer, _Chunk)
    except msgspec.ValidationError as error:
        raise CommandFailed(f"{url} sent an event that is no part of an answer ({error})") from error


def _json(data: str) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None
