"""A server of models whose answers a test programs, for daemons that have it as a peer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from mlxd.daemon.settings import PeerSettings

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]

SSE = "text/event-stream"


@dataclass
class Asked:
    """A request that it was asked."""

    path: str
    headers: Mapping[str, str]
    body: Any


@dataclass
class PeerServer:
    """Lists `models`, as an mlxd if it has an `instance`, and answers all else by `answer`. `left` has an entry for
    each request whose client went away.
    """

    url: str = ""
    models: list[dict[str, Any]] = field(default_factory=lambda: [{"id": "far"}])
    instance: str | None = "another"
    listing: Answer | None = None
    answer: Answer | None = None
    asked: list[Asked] = field(default_factory=list)
    cancelled: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    left: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    looks: int = 0

    def entry(self, name: str = "studio", **fields: Any) -> PeerSettings:
        """How a configuration names it."""
        return PeerSettings(name, self.url, **fields)

    async def list_models(self, request: web.Request) -> web.StreamResponse:
        self.looks += 1
        if self.listing is not None:
            return await self.listing(request)
        headers = {} if self.instance is None else {"X-Mlxd-Instance": self.instance}
        return web.json_response({"object": "list", "data": self.models}, headers=headers)

    async def take(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(Asked(request.path, request.headers.copy(), await request.json()))
        assert self.answer is not None
        try:
            return await self.answer(request)
        except (asyncio.CancelledError, ConnectionResetError):
            self.left.put_nowait(request.path)
            raise

    async def cancel(self, request: web.Request) -> web.StreamResponse:
        self.cancelled.put_nowait(request.match_info["id"])
        return web.json_response({})


@asynccontextmanager
async def peer_server(**fields: Any) -> AsyncIterator[PeerServer]:
    """One on a free port."""
    peer = PeerServer(**fields)
    application = web.Application()
    application.router.add_get("/v1/models", peer.list_models)
    application.router.add_delete("/v1/requests/{id}", peer.cancel)
    application.router.add_post("/{path:.*}", peer.take)
    runner = web.AppRunner(application, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        peer.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield peer
    finally:
        await runner.cleanup()


def says(body: Any = None, status: int = 200, **headers: str) -> Answer:
    """An answer in one piece."""

    async def answer(_: web.Request) -> web.StreamResponse:
        if isinstance(body, bytes):
            return web.Response(body=body, status=status, headers=headers or {"Content-Type": "text/html"})
        return web.json_response(body, status=status, headers=headers)

    return answer


def streams(*pieces: bytes, then: str = "end", kind: str = SSE, moments: asyncio.Queue[None] | None = None) -> Answer:
    """These pieces, each once `moments` has an entry if it is given; `then` it ends, breaks off, or hangs."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": kind, "X-Request-Id": "req-there"})
        await response.prepare(request)
        for data in pieces:
            if moments is not None:
                await moments.get()
            await response.write(data)
        if then == "breaks":
            assert request.transport is not None
            request.transport.abort()
        if then == "hangs":
            await asyncio.Event().wait()
        return response

    return answer


async def hangs(_: web.Request) -> web.StreamResponse:
    """No answer at all."""
    await asyncio.Event().wait()
    raise AssertionError
