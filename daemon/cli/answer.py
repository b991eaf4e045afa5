"""Asks for one chat answer and shows it while it is generated."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from mlxd.daemon.cli.chunks import answer_chunks
from mlxd.daemon.cli.client import DaemonClient
from mlxd.daemon.cli.screen import AnswerScreen
from mlxd.daemon.cli.sse import Comment

_PATH = "/v1/chat/completions"


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


async def _show(stream: AsyncIterator[bytes], screen: AnswerScreen, url: str) -> str | None:
    statistics = None
    async with aclosing(answer_chunks(stream, url)) as chunks:
        async for chunk in chunks:
            if isinstance(chunk, Comment):
                screen.note(chunk.text)
                continue
            statistics = chunk.statistics() or statistics
            deltas = [choice.delta for choice in chunk.choices]
            screen.think("".join(delta.reasoning_content or "" for delta in deltas))
            screen.write("".join(delta.content or "" for delta in deltas))
    return statistics
