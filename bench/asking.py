"""A client that costs little: answers over plain sockets, timed as their bytes come."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

from servers import Server

T = TypeVar("T")

# The first piece of an answer with text in it; servers differ in blanks.
_TEXT = re.compile(rb'"(?:content|reasoning|reasoning_content|text)": ?"[^"]')
_USAGE = re.compile(rb'"completion_tokens": ?(\d+)')


@dataclass(slots=True)
class Answer:
    """What came of one request: `started` and `moments` in seconds of one clock, `moments` of all that came since the
    first text; `tokens` as the server counts them.
    """

    started: float
    ended: float = 0.0
    tokens: int = 0
    moments: list[float] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """From the request to the last byte."""
        return self.ended - self.started

    @property
    def ttft(self) -> float:
        """Seconds to the first text."""
        return self.moments[0] - self.started

    @property
    def gaps(self) -> list[float]:
        """Seconds between what came."""
        return [later - earlier for earlier, later in zip(self.moments, self.moments[1:], strict=False)]


class _Reader(asyncio.Protocol):
    """Keeps the moments and the last bytes of an answer, and no more: 8 streams share two cores with the server."""

    def __init__(self, answer: Answer, request: bytes) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.body = bytearray()
        self._answer = answer
        self._request = request

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if self._answer.moments or _TEXT.search(data):
            self._answer.moments.append(time.perf_counter())
        self.body += data

    def connection_lost(self, _: Exception | None) -> None:
        self._answer.ended = time.perf_counter()
        if not self.done.done():
            self.done.set_result(None)

    def leave(self) -> None:
        """Go away in the middle."""
        self._transport.abort()


def body_of(server: Server, messages: str | Sequence[dict[str, str]], max_tokens: int, **fields: Any) -> dict[str, Any]:
    """A greedy, streamed chat request with usage in its last event; `fields` are added."""
    chat = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
    body = {
        "model": server.model,
        "messages": chat,
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **fields,
    }
    if not body["stream"]:
        del body["stream_options"]
    return body


async def ask(server: Server, messages: str | Sequence[dict[str, str]], max_tokens: int, **fields: Any) -> Answer:
    """One answer over a connection of its own. Raises RuntimeError for anything but one that is complete."""
    return await send(server, body_of(server, messages, max_tokens, **fields))


async def send(server: Server, body: dict[str, Any], path: str = "/v1/chat/completions") -> Answer:
    """See `ask`."""
    reader, answer = await _open(server, body, path)
    try:
        await reader.done
    except asyncio.CancelledError:
        reader.leave()
        raise
    head, _, rest = bytes(reader.body).partition(b"\r\n\r\n")
    counted = _USAGE.findall(rest)
    if b" 200 " not in head.split(b"\r\n", 1)[0] or not counted:
        raise RuntimeError(f"{server.name} answered {bytes(reader.body[-600:])!r}")
    answer.tokens = int(counted[-1])
    return answer


async def _open(server: Server, body: dict[str, Any], path: str) -> tuple[_Reader, Answer]:
    address = urlsplit(server.url)
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n"
    )
    answer = Answer(time.perf_counter())
    _, reader = await asyncio.get_running_loop().create_connection(
        lambda: _Reader(answer, head.encode() + data), address.hostname, address.port
    )
    return reader, answer


async def call(server: Server, method: str, path: str, body: dict[str, Any] | None = None) -> bytes:
    """The body of any other answer. Raises RuntimeError for what is not 2xx."""
    address = urlsplit(server.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    data = json.dumps(body).encode() if body is not None else b""
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n"
    )
    writer.write(head.encode() + data)
    try:
        received, _, rest = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
    if not received.startswith(b"HTTP/1.1 2"):
        raise RuntimeError(f"{server.name} answered {received + rest!r}")
    return rest


async def until(look: Callable[[], Awaitable[T | None]], seconds: float = 30) -> T:
    """What a look at a server gives once it gives something. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while (found := await look()) is None:  # noqa: ASYNC110 - what is in another process tells nobody when it changes
            await asyncio.sleep(0.01)
    return found


class Streams:
    """Answers that decode in the background while something else is measured; entered once each has its first text.

    Raises RuntimeError on leaving when one of them came to its end meanwhile, so that nothing is measured beside
    nothing, unless they `may_end`.
    """

    def __init__(self, server: Server, prompts: Sequence[str], max_tokens: int, *, may_end: bool = False) -> None:
        self._may_end = may_end
        self._server = server
        self._bodies = [body_of(server, prompt, max_tokens) for prompt in prompts]
        self._readers: list[_Reader] = []
        self.answers: list[Answer] = []

    async def __aenter__(self) -> Streams:
        for body in self._bodies:
            reader, answer = await _open(self._server, body, "/v1/chat/completions")
            self._readers.append(reader)
            self.answers.append(answer)
        async with asyncio.timeout(120):
            while not all(len(answer.moments) > 1 for answer in self.answers):
                if any(reader.done.done() for reader in self._readers):
                    raise RuntimeError(
                        f"{self._server.name}: a stream ended early: {bytes(self._readers[0].body[-400:])!r}"
                    )
                await asyncio.sleep(0.01)
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        ended = [reader for reader in self._readers if reader.done.done()]
        for reader in self._readers:
            reader.leave()
        await asyncio.gather(*[reader.done for reader in self._readers])
        if ended and kind is None and not self._may_end:
            raise RuntimeError(f"{self._server.name}: a stream was too short for what was measured beside it")

    def longest_gap(self, start: float, end: float) -> float:
        """The longest silence of any of them that touches that time, in seconds."""
        gaps = [end - min(end, answer.moments[-1]) for answer in self.answers]
        for answer in self.answers:
            pairs = zip(answer.moments, answer.moments[1:], strict=False)
            gaps += [later - earlier for earlier, later in pairs if later > start and earlier < end]
        return max(gaps)
