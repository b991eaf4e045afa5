"""Streamed answers of the daemon, chunk by chunk."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import Any

import msgspec

from mlxd.daemon.cli.answers import failure_from
from mlxd.daemon.cli.failures import CommandFailed
from mlxd.daemon.cli.sse import Comment, SseParser
from mlxd.daemon.cli.views import duration

_DONE = "[DONE]"
_ERROR_STATUS = 500
# Seconds of a wait below which it is not told.
_WORTH_SAYING = 0.01


class Delta(msgspec.Struct, frozen=True):
    """What is new of a chat's answer."""

    content: str | None = None
    reasoning_content: str | None = None


class Choice(msgspec.Struct, frozen=True):
    """One answer's part of a chunk."""

    delta: Delta = Delta()


class Cached(msgspec.Struct, frozen=True):
    """Tokens of the prompt that a kept prefix gave."""

    cached_tokens: int = 0


class Usage(msgspec.Struct, frozen=True):
    """Tokens of a whole answer."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: Cached = Cached()


class Vendor(msgspec.Struct, frozen=True):
    """How it came about, in seconds and tokens a second."""

    queue_s: float = 0.0
    load_s: float = 0.0
    prefill_s: float | None = None
    ttft_s: float | None = None
    decode_tps: float | None = None

    def times(self) -> Iterator[str]:
        """What is worth saying of it."""
        if self.load_s:
            yield f"loaded in {duration(self.load_s)}"
        elif self.queue_s >= _WORTH_SAYING:
            yield f"waited {duration(self.queue_s)}"
        if self.ttft_s is not None:
            yield f"first token after {duration(self.ttft_s)}"
        if self.decode_tps:
            yield f"{self.decode_tps:.1f} tokens/s"


class Chunk(msgspec.Struct, frozen=True):
    """One event of an answer; the last one has the usage, where that was asked for."""

    choices: tuple[Choice, ...] = ()
    usage: Usage | None = None
    mlxd: Vendor = Vendor()

    def statistics(self) -> str | None:
        """How the answer came about, in a line; None of what is not the last chunk."""
        if self.usage is None:
            return None
        cached = self.usage.prompt_tokens_details.cached_tokens
        asked = f"{self.usage.prompt_tokens} tokens asked" + (f" ({cached} cached)" if cached else "")
        return ", ".join([asked, f"{self.usage.completion_tokens} answered", *self.mlxd.times()])


async def answer_chunks(stream: AsyncIterator[bytes], url: str) -> AsyncGenerator[Chunk | Comment, None]:
    """The chunks of an answer as they come, and what is said meanwhile.

    Raises CommandFailed: what an error event says, for what is no chunk, and when the stream stops before its end.
    """
    parser = SseParser()
    async for data in stream:
        for event in parser.feed(data):
            if isinstance(event, Comment):
                yield event
            elif event.data == _DONE:
                return
            else:
                yield _chunk(event.data, url)
    raise CommandFailed(f"the daemon at {url} ended the answer before it was complete; its log says why")


def _chunk(data: str, url: str) -> Chunk:
    answer = _json(data)
    if isinstance(answer, dict) and "error" in answer:
        raise failure_from(_ERROR_STATUS, answer, url)
    try:
        return msgspec.convert(answer, Chunk)
    except msgspec.ValidationError as error:
        raise CommandFailed(f"{url} sent an event that is no part of an answer ({error})") from error


def _json(data: str) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None
