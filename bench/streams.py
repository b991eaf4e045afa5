"""What one user of a server sees: answers, and when each piece of a stream came."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any

import aiohttp
from servers import Server

# A user's message, or a chat of several.
Chat = str | list[dict[str, Any]]
Figures = dict[str, float]


class Client:
    """Asks one model for greedy answers. `bias` (token id to logit bias) goes with every request."""

    def __init__(self, server: Server, session: aiohttp.ClientSession, bias: Mapping[str, float]) -> None:
        self._server = server
        self._session = session
        self._bias = bias

    def request(self, chat: Chat, max_tokens: int, *, stream: bool = True) -> bytes:
        """The body of a request."""
        body = {
            "model": self._server.model,
            "messages": [{"role": "user", "content": chat}] if isinstance(chat, str) else chat,
            "max_tokens": max_tokens,
            "temperature": 0,
            "logit_bias": self._bias,
            "stream": stream,
        }
        return json.dumps(body).encode()

    async def pieces(self, request: bytes) -> AsyncIterator[float]:
        """The moment of each piece of text of a streamed answer, in seconds."""
        async with self._post(request) as response:
            response.raise_for_status()
            async for line in response.content:
                if line.startswith(b"data: {") and _has_text(json.loads(line[6:])):
                    yield time.perf_counter()

    async def ttft(self, chat: Chat, max_tokens: int = 2) -> float:
        """Seconds to the first piece; the rest is read too."""
        request = self.request(chat, max_tokens)
        started = time.perf_counter()
        moments = [moment async for moment in self.pieces(request)]
        return moments[0] - started

    async def answer(self, request: bytes) -> float:
        """Seconds that an answer takes, streamed or not."""
        started = time.perf_counter()
        async with self._post(request) as response:
            response.raise_for_status()
            await response.read()
        return time.perf_counter() - started

    def counting(self, salt: object, tokens: int = 4000) -> bytes:
        """The body of a request for a long answer, streamed."""
        return self.request(f"Count, {salt}: one two three", tokens)

    async def call(self, method: str, path: str) -> str:
        """What the server answers to a request without a body."""
        async with self._session.request(method, f"{self._server.url}{path}") as response:
            response.raise_for_status()
            return await response.text()

    def _post(self, request: bytes) -> Any:
        headers = {"Content-Type": "application/json"}
        return self._session.post(f"{self._server.url}/v1/chat/completions", data=request, headers=headers)


class Stream:
    """Answers that decode in the background, one after the other; entered once their pace is known, at 8 pieces."""

    def __init__(self, client: Client, requests: Iterable[bytes]) -> None:
        self.moments: list[float] = []
        self._pauses: list[tuple[float, float]] = []
        self._wanted = 8
        self._reached = asyncio.Event()
        self._task = asyncio.create_task(self._read(client, requests))

    async def _read(self, client: Client, requests: Iterable[bytes]) -> None:
        try:
            for request in requests:
                begun = len(self.moments)
                async for moment in client.pieces(request):
                    self._add(moment, first=len(self.moments) == begun)
        finally:
            self._reached.set()

    def _add(self, moment: float, *, first: bool) -> None:
        if not first:
            self._pauses.append((self.moments[-1], moment))
        self.moments.append(moment)
        if len(self.moments) >= self._wanted:
            self._reached.set()

    async def more(self, count: int) -> None:
        """Wait for that many further pieces. Raises what ended the stream, RuntimeError when it came to its end."""
        self._wanted = len(self.moments) + count
        if not self._task.done():
            self._reached.clear()
        await self._until_reached()

    async def _until_reached(self) -> None:
        async with asyncio.timeout(120):
            await self._reached.wait()
        if self._task.done():
            self._task.result()
            raise RuntimeError(f"the stream ended after {len(self.moments)} pieces")

    async def __aenter__(self) -> Stream:
        await self._until_reached()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def gaps(self, start: float, end: float) -> list[float]:
        """The pauses within answers, in seconds, of which some part lies in that time."""
        return [later - earlier for earlier, later in self._pauses if later > start and earlier < end]


async def medians(parts: Mapping[str, Callable[[], Awaitable[Figures]]], runs: int) -> dict[str, Figures]:
    """The medians of each part's figures over runs of all parts in turn."""
    results: dict[str, list[Figures]] = {name: [] for name in parts}
    for _ in range(runs):
        for name, part in parts.items():
            results[name].append(await part())
    return {name: {key: statistics.median(one[key] for one in ran) for key in ran[0]} for name, ran in results.items()}


def show(server: str, part: str, figures: Figures) -> None:
    shown = "  ".join(f"{key} {value:.3f}" for key, value in figures.items())
    print(f"{server:14} {part:6} {shown}", flush=True)


def _has_text(chunk: dict[str, Any]) -> bool:
    return any(choice.get("delta", {}).get("content") for choice in chunk["choices"])
