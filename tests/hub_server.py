"""A small Hugging Face hub on a real port: what `huggingface_hub` asks for, and faults to program."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

COMMIT = "c0ffee" + "0" * 34
LARGE = 10_000
"""Bytes from which a file is stored as LFS files are, with its SHA-256."""

_BLOCK = 1 << 16


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@dataclass
class Hold:
    """Whoever asks for a file gets no more than so many bytes until it is released; `reached` is set when one has."""

    after: int
    reached: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)


@dataclass
class Repo:
    """Files by name. `declared` says other things of some than what is true; `refused` is how files are answered.

    The list of an `endless` one does not end, whatever its status is; the bytes of a `packed` one are said to be so.
    """

    files: Mapping[str, bytes]
    commit: str = COMMIT
    revisions: tuple[str, ...] = ("main",)
    declared: dict[str, dict[str, Any]] = field(default_factory=dict)
    corrupt: set[str] = field(default_factory=set)
    listing_refused: tuple[int, dict[str, str]] | None = None
    files_refused: tuple[int, dict[str, str]] | None = None
    ranges: bool = True
    endless: bool = False
    packed: bool = False

    def siblings(self) -> list[dict[str, Any]]:
        return [self._sibling(name, content) | self.declared.get(name, {}) for name, content in self.files.items()]

    def _sibling(self, name: str, content: bytes) -> dict[str, Any]:
        size = len(content)
        blob = hashlib.sha1(b"blob %d\0" % size + content).hexdigest()
        lfs = {"sha256": hashlib.sha256(content).hexdigest(), "size": size, "pointerSize": 130}
        return {"rfilename": name, "size": size, "blobId": blob} | ({"lfs": lfs} if size >= LARGE else {})


class HubServer:
    """Serves `repos`. `sent` counts the bytes of each file that went out, `asked` has each request for one."""

    def __init__(self) -> None:
        self.url = ""
        self.repo = ""
        self.repos: dict[str, Repo] = {}
        self.holds: dict[str, Hold] = {}
        self.breaks: dict[str, int] = {}
        self.always_breaks: dict[str, int] = {}
        self.sent: Counter[str] = Counter()
        self.asked: list[tuple[str, str | None]] = []
        self.tokens: set[str | None] = set()
        self.tokens_elsewhere: set[str | None] = set()
        self.listed = 0

    def forget(self) -> None:
        """Begin anew: no repositories, no faults, nothing counted."""
        self.release()
        for told in (
            self.repos,
            self.holds,
            self.breaks,
            self.always_breaks,
            self.sent,
            self.tokens,
            self.tokens_elsewhere,
        ):
            told.clear()
        self.asked.clear()
        self.listed = 0

    def release(self) -> None:
        """Let all go on that are held."""
        for hold in self.holds.values():
            hold.released.set()

    def hold(self, name: str, after: int) -> Hold:
        """Stop within this file."""
        self.holds[name] = Hold(after)
        return self.holds[name]

    async def _listing(self, request: web.Request) -> web.StreamResponse:
        self.listed += 1
        self.tokens.add(request.headers.get("Authorization"))
        repo = self.repos.get(request.match_info["repo"])
        if repo is None:
            return web.json_response({"error": "x"}, status=401, headers={"X-Error-Code": "RepoNotFound"})
        if repo.endless:
            return await _endless(request, *(repo.listing_refused or (200, {})))
        if repo.listing_refused is not None:
            status, headers = repo.listing_refused
            return web.json_response({"error": "x"}, status=status, headers=headers)
        revision = request.match_info["revision"]
        if revision not in (*repo.revisions, repo.commit):
            return web.json_response({"error": "x"}, status=404, headers={"X-Error-Code": "RevisionNotFound"})
        assert request.query["blobs"]
        return web.json_response(
            {"id": request.match_info["repo"], "sha": repo.commit, "siblings": repo.siblings(), "tags": []}
        )

    async def _file(self, request: web.Request) -> web.StreamResponse:
        """As the hub does: the commit and the ETag on a redirect, the bytes from another place."""
        repo, name = self.repos[request.match_info["repo"]], request.match_info["name"]
        assert request.match_info["revision"] == repo.commit
        if repo.files_refused is not None:
            status, headers = repo.files_refused
            return web.json_response({"error": "x"}, status=status, headers=headers)
        if name not in repo.files:
            return web.json_response({"error": "x"}, status=404, headers={"X-Error-Code": "EntryNotFound"})
        headers = {"X-Repo-Commit": repo.commit, "X-Linked-Size": str(len(repo.files[name]))}
        elsewhere = self.url.replace("127.0.0.1", "localhost")  # of another name, as the hub's storage is
        place = f"{elsewhere}/cdn/{request.match_info['repo']}:{name}"
        return web.Response(status=302, headers={**headers, "Location": place})

    async def _bytes(self, request: web.Request) -> web.StreamResponse:
        repo_id, _, name = request.match_info["place"].partition(":")
        repo, wanted = self.repos[repo_id], request.headers.get("Range")
        self.asked.append((name, wanted))
        self.tokens_elsewhere.add(request.headers.get("Authorization"))
        content, first = repo.files[name], 0
        if name in repo.corrupt:
            content = bytes(len(content) - 1) + b"x"
        response = web.StreamResponse()
        if wanted is not None and repo.ranges:
            first = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if first >= len(content):
                return web.Response(status=416, headers={"Content-Range": f"bytes */{len(content)}"})
            response.set_status(206)
            response.headers["Content-Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
        response.content_length = len(content) - first
        if repo.packed:
            response.headers["Content-Encoding"] = "gzip"
        await response.prepare(request)
        with contextlib.suppress(ConnectionResetError):  # the client has left
            await self._send(request, response, name, content, first)
        return response

    async def _send(
        self, request: web.Request, response: web.StreamResponse, name: str, content: bytes, first: int
    ) -> None:
        hold, ends = self.holds.get(name), self.breaks.pop(name, self.always_breaks.get(name, len(content)))
        while first < len(content):
            if hold is not None and first >= hold.after:
                hold.reached.set()
                await asyncio.to_thread(hold.released.wait, 60)
                hold = None
            stop = min(len(content), first + _BLOCK, ends, len(content) if hold is None else hold.after)
            await response.write(content[first:stop])
            self.sent[name] += stop - first
            first = stop
            if first == ends and first < len(content):
                assert request.transport is not None
                request.transport.abort()
                return

    def application(self) -> web.Application:
        application = web.Application()
        application.router.add_get("/api/models/{repo:.+}/revision/{revision}", self._listing)
        application.router.add_get("/cdn/{place:.+}", self._bytes)
        application.router.add_get("/{repo:.+}/resolve/{revision}/{name:.+}", self._file)
        return application


async def _endless(request: web.Request, status: int, headers: Mapping[str, str]) -> web.StreamResponse:
    response = web.StreamResponse(status=status, headers=headers)
    await response.prepare(request)
    with contextlib.suppress(ConnectionResetError):
        while True:
            await response.write(b" " * _BLOCK)
    return response


@contextmanager
def hub_server() -> Iterator[HubServer]:
    """A hub without repositories, served from a thread of its own until the block ends."""
    hub = HubServer()
    loop, started, stop = asyncio.new_event_loop(), threading.Event(), asyncio.Event()

    async def serve() -> None:
        runner = web.AppRunner(hub.application(), shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        hub.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        started.set()
        await stop.wait()
        hub.release()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert started.wait(10)
    try:
        yield hub
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()
