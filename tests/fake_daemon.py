"""A daemon's HTTP face without the daemon: documented shapes on a real port, and a record of what was asked."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

GIB = 2**30
HANG = object()
"""In a chat script: wait until the client leaves."""
BREAK = object()
"""In a chat script: drop the connection without ending the answer."""


def model(name: str, state: str = "unloaded", **changes: object) -> dict:
    """A model object as the daemon answers it."""
    base = {
        "id": name, "aliases": [], "kind": "text", "path": f"/models/{name}", "state": state, "pinned": False,
        "ttl_s": None, "unload_at": None, "weight_bytes": GIB, "resident_bytes": 0, "kv_bytes": 0,
        "prefix_cache_bytes": 0, "leases": 0, "queued": 0, "loaded_at": None, "last_used_at": None,
        "load_seconds": None, "isolation": "thread", "pid": None, "load": None, "error": None, "engine": None,
    }  # fmt: skip
    if state == "ready":
        base |= {"resident_bytes": GIB + GIB // 2, "load_seconds": 3.25}
    return base | changes


def error(code: str, message: str, **details: object) -> dict:
    return {"error": {"message": message, "type": "x", "code": code, "param": None, "details": details}}


def chunk(text: str) -> bytes:
    data = {"id": "c", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": text}}]}
    return event(data)


def event(data: object) -> bytes:
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


DONE = b"data: [DONE]\n\n"


class FakeDaemon:
    """What it answers is set by the test: `models`, `chat` (pieces of a stream), `answers` by method and path."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[tuple[str, str, object, str | None]] = []
        self.arrived = threading.Event()
        self.client_left = threading.Event()
        self.models = [model("qwen", "ready")]
        self.chat: list[object] = [chunk("Hello"), chunk(" there"), DONE]
        self.answers: dict[tuple[str, str], tuple[int, object]] = {}

    def asked(self, method: str) -> list[tuple[str, object]]:
        """Paths and bodies of all requests of this kind."""
        return [(path, body) for kind, path, body, _ in self.requests if kind == method]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json() if request.can_read_body else None
        path = request.path
        self.requests.append((request.method, path, body, request.headers.get("Authorization")))
        status, answer = self.answers.get((request.method, path), (0, None))
        if answer is HANG:
            self.arrived.set()
            return await self._hang()
        if status:
            raw = answer if isinstance(answer, str) else json.dumps(answer)
            return web.Response(status=status, text=raw, content_type="application/json")
        if path == "/v1/chat/completions":
            return await self._stream(request)
        return web.json_response(*self._known(request.method, path))

    def _known(self, method: str, path: str) -> tuple[object]:
        if path == "/admin/models":
            return ({"data": self.models},)
        known = {m["id"]: m for m in self.models}
        name = path.removeprefix("/admin/models/").removeprefix("/v1/models/")
        if method == "GET" and name in known:
            return (known[name],)
        raise web.HTTPNotFound(
            text=json.dumps(error("model_not_found", f"there is no model {name!r}", suggestions=["qwen"])),
            content_type="application/json",
        )

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for piece in self.chat:
            if piece is HANG:
                self.arrived.set()
                return await self._hang()
            if piece is BREAK:
                request.transport.abort()
                return response
            await response.write(piece)
        return response

    async def _hang(self) -> web.StreamResponse:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.client_left.set()
            raise
        raise AssertionError


@contextmanager
def running(daemon: FakeDaemon) -> Iterator[FakeDaemon]:
    """Serve on a free port from a thread of its own until the block ends."""
    started = threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", daemon.handle)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        daemon.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        started.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert started.wait(10)
        yield daemon
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()
    assert not thread.is_alive()
