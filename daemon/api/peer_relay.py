"""Passes a request on to a peer, and its answer back as it comes."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager

import aiohttp
import msgspec
import structlog
from aiohttp import web

from mlxd.daemon.api.asked_model import MAX_WAIT_HEADER
from mlxd.daemon.api.caller import key_of
from mlxd.daemon.api.error_shapes import shape_of
from mlxd.daemon.api.errors import ErrorAnswer, explain
from mlxd.daemon.api.middleware import IGNORED_HEADER, REQUEST_ID_HEADER, note_ignored, request_id_of
from mlxd.daemon.api.peer_answer import PeerAnswer
from mlxd.daemon.api.peer_events import STREAMS, WholeEvents, is_error, is_event
from mlxd.daemon.api.refusals import PeerUnavailable, RequestNotFound
from mlxd.daemon.api.running import LiveRequest
from mlxd.daemon.api.services import services_of
from mlxd.daemon.api.sse import EventStream
from mlxd.daemon.peers.headers import PEER
from mlxd.daemon.peers.peer import Peer, PeerLost
from mlxd.daemon.peers.peers import CONNECT_TIMEOUT

log = structlog.stdlib.get_logger(__name__)

# What of a request's head is the peer's matter too, and what of its answer's head the client's.
_SENT = (MAX_WAIT_HEADER, "Accept", "anthropic-version", "anthropic-beta")
_RETURNED = ("Retry-After", "x-should-retry")
_FIELD = re.compile(r"[\w.\[\]-]{1,100}", re.ASCII)
_JSON = "application/json"
_MOST_BYTES = 256_000_000
_OK = 200
_REFUSED = 400
_BROKE = 500
_WRONG_KEY = (401, 403)
_BROKEN = (500, 502, 504)
# What another machine may do: this one is busy or broken, or has not the model.
_ELSEWHERE = frozenset({404, 408, 409, 429, 503, 507, *_BROKEN})
_UPSTREAM = (aiohttp.ClientError, TimeoutError)

Chunks = AsyncGenerator[bytes, None]


class PeerRefused(Exception):
    """The peer answers with an error that another machine may not give: `response` says it to the client, or `event`
    in a stream.
    """

    def __init__(self, what: str, response: web.Response | None = None, event: bytes = b"") -> None:
        super().__init__(f"it answers with {what}")
        self.response = response
        self.event = event


class _ClientGone(Exception):
    """Nobody reads the answer any more."""


class PeerRelay:
    """One request, whose answer is to be streamed or not. `answer` may be called for one peer after the other, until
    one has said something of an answer.
    """

    def __init__(self, request: web.Request, api: str, *, streams: bool) -> None:
        self._request = request
        self._services = services_of(request)
        self._api = api
        self._streams = streams
        self._stream: EventStream | None = None

    @property
    def begun(self) -> bool:
        """Whether the client has a status line."""
        return self._stream is not None and self._stream.started

    async def answer(self, peer: Peer, model: str, body: bytes) -> web.StreamResponse:
        """Have the peer answer, for its model of this name.

        Raises PeerLost and PeerRefused before it has, ShuttingDown, and RequestNotFound for what was cancelled.
        """
        try:
            return await self._tracked(peer, model, body)
        except _ClientGone:
            log.info("stream.client_gone")
        except PeerUnavailable as error:  # in the middle of it
            return await self.fail(error)
        assert self._stream is not None, "there is a client, and an answer, only of a stream"
        return self._stream.response

    async def fail(self, error: Exception) -> web.StreamResponse:
        """Say in the stream what went wrong. Raises it where there is no stream yet."""
        if not self.begun:
            raise error
        request_id = request_id_of(self._request)
        answer, shape = explain(error, request_id), shape_of(self._request)
        self._services.metrics.traffic.refused(answer.code)
        return await self.end(shape.framed(shape.body(answer, request_id)))

    async def end(self, event: bytes) -> web.StreamResponse:
        """The last event of the stream."""
        assert self._stream is not None
        try:
            await self._stream.end(event)
        except ConnectionResetError:
            log.info("stream.client_gone")
        return self._stream.response

    def pass_on(self) -> None:
        """Whoever answers instead goes on with the stream, if the client has something of it."""
        if self._stream is not None and self._stream.started:
            self._stream.pass_on()

    async def _tracked(self, peer: Peer, model: str, body: bytes) -> web.StreamResponse:
        running, wanted = self._services.running, request_id_of(self._request)
        # what a peer does not list is not kept as a label: there is no end to such names
        shown = f"{peer.name}/{model if model in peer.models else '?'}"
        async with AsyncExitStack() as held:
            live = held.enter_context(running.track(wanted, shown, self._api, key_of(self._request)))
            remote = PeerAnswer(self._services.peers, peer, live)
            held.push_async_callback(remote.close)
            await held.enter_async_context(peer.at_work())
            live.admit(remote, 1)
            try:
                return await self._answered(peer, model, body, live, remote)
            except (PeerLost, PeerRefused):
                if live.is_cancelled:
                    raise RequestNotFound("the request was cancelled") from None
                raise

    async def _answered(
        self, peer: Peer, model: str, body: bytes, live: LiveRequest, remote: PeerAnswer
    ) -> web.StreamResponse:
        async with AsyncExitStack() as held:
            started = time.monotonic()
            async with peer.unanswered(model), self._counting(peer):
                upstream = await held.enter_async_context(self._posted(peer, body, live.id))
                remote.there = upstream.headers.get(REQUEST_ID_HEADER)
                if upstream.content_type not in STREAMS or upstream.status != _OK:
                    response: web.StreamResponse = await self._whole(peer, upstream)
                    live.end_one(0)
                    return response
                if not self._streams:
                    raise PeerLost("it streams what was not to be streamed")
                stream, events = self._begin(peer, upstream), WholeEvents(STREAMS[upstream.content_type])
                chunks = await held.enter_async_context(aclosing(_chunks(upstream, events)))
                first = await self._first(stream, events, chunks)
            peer.answered(time.monotonic() - started)
            remote.decoding = True
            await self._pass(peer, stream, first, chunks)
            live.end_one(0)
            return stream.response

    @asynccontextmanager
    async def _counting(self, peer: Peer) -> AsyncIterator[None]:
        """What goes wrong inside counts against the peer. Raises PeerLost for it."""
        try:
            yield
        except _UPSTREAM as error:
            self._services.peers.fail(peer, error)
            may_be_back = isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError)
            raise PeerLost(f"peer {peer.name}: {_said(error)}", may_be_back=may_be_back) from error
        except PeerLost as error:
            self._services.peers.fail(peer, error)
            raise

    @asynccontextmanager
    async def _posted(self, peer: Peer, body: bytes, request_id: str) -> AsyncIterator[aiohttp.ClientResponse]:
        """The request is with the peer, and the head of its answer is here."""
        peers, timeout = self._services.peers, peer.settings.timeout
        sent = {name: self._request.headers[name] for name in _SENT if name in self._request.headers}
        asking = peers.session.post(
            peer.base + self._request.path,
            data=body,
            headers={**sent, **peers.headers(peer), REQUEST_ID_HEADER: request_id, "Content-Type": _JSON},
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT, sock_read=timeout),
            allow_redirects=False,
        )
        async with AsyncExitStack() as held:
            # a peer that does not read the body is not noticed by `sock_read`
            async with asyncio.timeout(timeout):
                answer = await held.enter_async_context(asking)
            yield answer

    async def _whole(self, peer: Peer, upstream: aiohttp.ClientResponse) -> web.Response:
        """An answer in one piece. Raises PeerLost and PeerRefused."""
        data, status = await _read(upstream), upstream.status
        if status in _WRONG_KEY:
            raise PeerLost(f"peer {peer.name} does not take the key of its [[peer]] entry (status {status})")
        is_json = upstream.content_type == _JSON and _is_object(data)
        if not is_json and _REFUSED <= status < _BROKE:
            raise PeerRefused(f"status {status}", self._refusal(peer, status))
        if not is_json or _OK < status < _REFUSED:
            shown = f"status {status}, {upstream.content_type}"
            raise PeerLost(f"peer {peer.name} does not answer as a server of models does ({shown})")
        headers = {name: upstream.headers[name] for name in _RETURNED if name in upstream.headers}
        response = web.Response(body=data, status=status, content_type=_JSON, headers={**headers, PEER: peer.name})
        if status in _ELSEWHERE:
            if status in _BROKEN:
                self._services.peers.fail(peer, PeerLost(f"it answers with status {status}"))
            raise PeerRefused(f"status {status}", response)
        if self.begun:
            raise PeerRefused("one piece, after others began to stream")
        peer.worked()
        self._note_ignored(upstream.headers)
        return response

    def _refusal(self, peer: Peer, status: int) -> web.Response:
        """What something before the peer, such as a proxy, has against this one request."""
        shape, message = shape_of(self._request), f"peer {peer.name} refuses the request with status {status}"
        answer = ErrorAnswer(status, "invalid_request", "invalid_request_error", message, None, None, {})
        body = shape.body(answer, request_id_of(self._request))
        return web.Response(body=body, status=status, content_type=_JSON, headers={PEER: peer.name})

    def _begin(self, peer: Peer, upstream: aiohttp.ClientResponse) -> EventStream:
        if self._stream is None or not self._stream.started:
            self._stream = EventStream(self._request, STREAMS[upstream.content_type])
            self._stream.response.headers[PEER] = peer.name
            self._note_ignored(upstream.headers)
        return self._stream

    def _note_ignored(self, headers: Mapping[str, str]) -> None:
        names = (name.strip() for name in headers.get(IGNORED_HEADER, "").split(","))
        note_ignored(self._request, filter(_FIELD.fullmatch, names))

    async def _first(self, stream: EventStream, events: WholeEvents, chunks: Chunks) -> bytes:
        """The first events of an answer; those before it, which say that it takes its time, are passed on.

        Raises PeerLost and PeerRefused.
        """
        async for chunk in chunks:
            waiting = events.waiting(chunk)
            if waiting.strip():
                await _to_client(stream.write(waiting))
            answer = chunk[len(waiting) :]
            if not answer.strip():
                continue
            first = events.first(answer)
            if not is_event(first):
                raise PeerLost("what it streams are no events")
            if is_error(first):
                raise PeerRefused("an error in its stream", event=first)
            return answer
        raise PeerLost("its stream ended before an answer", may_be_back=True)

    async def _pass(self, peer: Peer, stream: EventStream, first: bytes, chunks: Chunks) -> None:
        """Everything as it comes, as fast as the client reads. Raises PeerUnavailable when the peer breaks off."""
        await _to_client(stream.write(first))
        while chunk := await self._next(peer, chunks):
            await _to_client(stream.write(chunk))
        await _to_client(stream.end(b""))

    async def _next(self, peer: Peer, chunks: Chunks) -> bytes:
        try:
            async with peer.reading():
                return await anext(chunks, b"")
        except (*_UPSTREAM, PeerLost) as error:
            self._services.peers.fail(peer, error)
            log.info("peer.broke_off", peer=peer.name, error=_said(error))
            said = f"peer {peer.name} broke off in the middle of its answer; send the request again"
            raise PeerUnavailable(said) from error


async def _to_client(writing: Awaitable[None]) -> None:
    """A client that is gone is no fault of the peer, though aiohttp says both by one exception."""
    try:
        await writing
    except ConnectionResetError:
        raise _ClientGone from None


async def _chunks(upstream: aiohttp.ClientResponse, events: WholeEvents) -> Chunks:
    async for piece in upstream.content.iter_any():
        if whole := events.take(piece):
            yield whole
    if rest := events.rest():
        yield rest


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
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__
