"""Passes a request on to a peer, and its answer back as it comes."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import structlog
from aiohttp import web

from mlxd.daemon.api.asked_model import MAX_WAIT_HEADER
from mlxd.daemon.api.caller import key_of
from mlxd.daemon.api.error_shapes import shape_of
from mlxd.daemon.api.errors import explain
from mlxd.daemon.api.middleware import IGNORED_HEADER, REQUEST_ID_HEADER, note_ignored, request_id_of
from mlxd.daemon.api.peer_answer import PeerAnswer
from mlxd.daemon.api.refusals import PeerUnavailable
from mlxd.daemon.api.services import services_of
from mlxd.daemon.api.sse import EventStream
from mlxd.daemon.peers.headers import PEER
from mlxd.daemon.peers.peer import Peer, PeerLost
from mlxd.daemon.peers.peers import CONNECT_TIMEOUT
from mlxd.registry.errors import ShuttingDown

log = structlog.stdlib.get_logger(__name__)

# What of a request's head is the peer's matter too, and what of its answer's head the client's.
_SENT = (MAX_WAIT_HEADER, "Accept", "anthropic-version", "anthropic-beta")
_RETURNED = ("Retry-After", "x-should-retry")
_STREAMS = ("text/event-stream", "application/x-ndjson")
_JSON = "application/json"
_MOST_BYTES = 256_000_000
_COMMENTS = re.compile(rb"(?:\s*:[^\n]*\n)*\s*")
_BEGINS = re.compile(rb"(?:data|event|id|retry)\s*:|\{")
# Bytes after which it shows whether they begin an event.
_SHOWS = 64
_OK = 200
_REFUSED = 400
_WRONG_KEY = (401, 403)
_BROKEN = (500, 502, 504)
# What another machine may do: this one is busy or broken, or has not the model.
_ELSEWHERE = frozenset({404, 408, 409, 429, 503, 507, *_BROKEN})
_UPSTREAM = (aiohttp.ClientError, TimeoutError)

Chunks = AsyncGenerator[bytes, None]


class PeerRefused(Exception):
    """The peer answers with an error that another machine may not give; `response` says it to the client."""

    def __init__(self, response: web.Response) -> None:
        super().__init__(f"it answers with status {response.status}")
        self.response = response


class _ClientGone(Exception):
    """Nobody reads the answer any more."""


class PeerRelay:
    """One request. `answer` may be called for one peer after the other, until one has said something of an answer."""

    def __init__(self, request: web.Request, api: str) -> None:
        self._request = request
        self._services = services_of(request)
        self._api = api
        self._stream: EventStream | None = None

    async def answer(self, peer: Peer, model: str, body: bytes) -> web.StreamResponse:
        """Have the peer answer, for its model of this name. Raises PeerLost and PeerRefused before it has, and
        ShuttingDown.
        """
        try:
            return await self._tracked(peer, model, body)
        except _ClientGone:
            log.info("stream.client_gone")
        except (PeerUnavailable, ShuttingDown) as error:  # in the middle of it
            return await self.fail(error)
        assert self._stream is not None, "there is a client, and an answer, only of a stream"
        return self._stream.response

    @property
    def begun(self) -> bool:
        """Whether the client has a status line."""
        return self._stream is not None and self._stream.started

    async def fail(self, error: Exception) -> web.StreamResponse:
        """Say in the stream what went wrong. Raises it where there is no stream yet."""
        if self._stream is None or not self._stream.started:
            raise error
        request_id = request_id_of(self._request)
        answer, shape = explain(error, request_id), shape_of(self._request)
        self._services.metrics.traffic.refused(answer.code)
        try:
            await self._stream.end(shape.framed(shape.body(answer, request_id)))
        except ConnectionResetError:
            log.info("stream.client_gone")
        return self._stream.response

    def pass_on(self) -> None:
        """Whoever answers instead goes on with the stream, if there is one."""
        if self._stream is not None:
            self._stream.pass_on()

    async def _tracked(self, peer: Peer, model: str, body: bytes) -> web.StreamResponse:
        running, wanted = self._services.running, request_id_of(self._request)
        async with AsyncExitStack() as held:
            live = held.enter_context(running.track(wanted, f"{peer.name}/{model}", self._api, key_of(self._request)))
            remote = PeerAnswer(self._services.peers, peer, live)
            held.push_async_callback(remote.close)
            await held.enter_async_context(peer.at_work())
            live.admit(remote, 1)
            started = time.monotonic()
            async with peer.unanswered(model), self._counting(peer):
                upstream = await held.enter_async_context(self._post(peer, body, live.id))
                remote.there = upstream.headers.get(REQUEST_ID_HEADER)
                if upstream.content_type not in _STREAMS or upstream.status != _OK:
                    response: web.StreamResponse = await self._whole(peer, upstream)
                    if self.begun:
                        raise PeerLost(f"peer {peer.name} answers in one piece what others began to stream")
                    live.end_one(0)
                    return response
                chunks = await held.enter_async_context(aclosing(_chunks(upstream)))
                first = await self._first(self._begin(peer, upstream), chunks)
            peer.answered(time.monotonic() - started)
            remote.decoding = True
            response = await self._pass(peer, first, chunks)
            live.end_one(0)
            return response

    @asynccontextmanager
    async def _counting(self, peer: Peer) -> AsyncIterator[None]:
        """What goes wrong inside counts against the peer. Raises PeerLost for it."""
        try:
            yield
        except _UPSTREAM as error:
            self._services.peers.fail(peer, error)
            raise PeerLost(f"peer {peer.name}: {_said(error)}") from error
        except PeerLost as error:
            self._services.peers.fail(peer, error)
            raise

    def _post(self, peer: Peer, body: bytes, request_id: str) -> Any:
        headers = {name: self._request.headers[name] for name in _SENT if name in self._request.headers}
        return self._services.peers.session.post(
            peer.base + self._request.path_qs,
            data=body,
            headers={
                **headers,
                **self._services.peers.headers(peer),
                REQUEST_ID_HEADER: request_id,
                "Content-Type": _JSON,
            },
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT, sock_read=peer.settings.timeout),
            allow_redirects=False,
        )

    async def _whole(self, peer: Peer, upstream: aiohttp.ClientResponse) -> web.Response:
        """An answer in one piece. Raises PeerLost and PeerRefused."""
        data = await _read(upstream)
        if upstream.status in _WRONG_KEY:
            raise PeerLost(f"peer {peer.name} does not take the key of its [[peer]] entry")
        if upstream.content_type != _JSON or not _is_object(data) or _OK < upstream.status < _REFUSED:
            shown = f"status {upstream.status}, {upstream.content_type}"
            raise PeerLost(f"peer {peer.name} does not answer as a server of models does ({shown})")
        headers = {name: upstream.headers[name] for name in _RETURNED if name in upstream.headers}
        response = web.Response(
            body=data, status=upstream.status, content_type=_JSON, headers={**headers, PEER: peer.name}
        )
        if upstream.status in _ELSEWHERE:
            if upstream.status in _BROKEN:
                self._services.peers.fail(peer, PeerLost(f"it answers with status {upstream.status}"))
            raise PeerRefused(response)
        peer.worked()
        self._note_ignored(upstream.headers)
        return response

    def _begin(self, peer: Peer, upstream: aiohttp.ClientResponse) -> EventStream:
        if self._stream is None:
            self._stream = EventStream(self._request, upstream.headers.get("Content-Type", ""))
        if not self._stream.started:
            self._stream.response.headers[PEER] = peer.name
            self._note_ignored(upstream.headers)
        return self._stream

    def _note_ignored(self, headers: Mapping[str, str]) -> None:
        note_ignored(self._request, filter(None, headers.get(IGNORED_HEADER, "").split(", ")))

    async def _first(self, stream: EventStream, chunks: Chunks) -> bytes:
        """The first bytes of an answer; comments before it are passed on. Raises PeerLost."""
        pending = b""
        async for chunk in chunks:
            pending += chunk
            comments = _COMMENTS.match(pending)
            end = comments.end() if comments is not None else 0
            if b":" in pending[:end]:
                await _to_client(stream.write(pending[:end]))
            pending = pending[end:]
            if b"\n" not in pending and len(pending) < _SHOWS:
                continue
            if _BEGINS.match(pending) is None:
                raise PeerLost("what it streams are no events")
            return pending
        raise PeerLost("its stream ended before an answer")

    async def _pass(self, peer: Peer, first: bytes, chunks: Chunks) -> web.StreamResponse:
        """Everything as it comes, as fast as the client reads. Raises PeerUnavailable when the peer breaks off."""
        stream = self._stream
        assert stream is not None
        await _to_client(stream.write(first))
        while chunk := await self._next(peer, chunks):
            await _to_client(stream.write(chunk))
        await _to_client(stream.end(b""))
        return stream.response

    async def _next(self, peer: Peer, chunks: Chunks) -> bytes:
        try:
            return await anext(chunks, b"")
        except _UPSTREAM as error:
            self._services.peers.fail(peer, error)
            said = f"peer {peer.name} broke off in the middle of its answer ({_said(error)}); send the request again"
            raise PeerUnavailable(said) from error


async def _to_client(writing: Awaitable[None]) -> None:
    """A client that is gone is no fault of the peer, though aiohttp says both by one exception."""
    try:
        await writing
    except ConnectionResetError:
        raise _ClientGone from None


async def _chunks(upstream: aiohttp.ClientResponse) -> Chunks:
    async for chunk in upstream.content.iter_any():
        yield chunk


async def _read(upstream: aiohttp.ClientResponse) -> bytes:
    data = bytearray()
    async for chunk in upstream.content.iter_any():
        data += chunk
        if len(data) > _MOST_BYTES:
            raise PeerLost(f"its answer has more than {_MOST_BYTES} bytes")
    return bytes(data)


def _is_object(data: bytes) -> bool:
    try:
        msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False
    return True


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__
