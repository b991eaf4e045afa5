"""Has each request answered where that is soonest: here, or by a peer. What fails before its first byte goes on."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import msgspec
import structlog
from aiohttp import web

from mlxd.daemon.api.body import body_kept, with_body
from mlxd.daemon.api.errors import describe
from mlxd.daemon.api.peer_relay import PeerRefused, PeerRelay
from mlxd.daemon.api.peer_ways import Asked, Way, Ways
from mlxd.daemon.api.refusals import PeerUnavailable
from mlxd.daemon.api.routes import Handler
from mlxd.daemon.api.services import services_of
from mlxd.daemon.peers.headers import HOPS
from mlxd.daemon.peers.listing import is_sane
from mlxd.daemon.peers.peer import Peer, PeerLost
from mlxd.registry.errors import ShuttingDown

log = structlog.stdlib.get_logger(__name__)

# The calls that peers answer, and what they are called in lists of requests.
CALLS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/responses": "responses",
    "/v1/responses/input_tokens": "responses",
    "/v1/messages": "messages",
    "/v1/messages/count_tokens": "messages",
    "/v1/embeddings": "embeddings",
    "/v1/rerank": "rerank",
    "/v1/tokenize": "tokenize",
    "/api/chat": "ollama",
    "/api/generate": "ollama",
    "/api/embed": "ollama",
    "/api/embeddings": "ollama",
}
_RESPONSES = "/v1/responses"
# Refusals of this daemon that another machine may not give.
_ELSEWHERE = frozenset({409, 429, 503, 507})


@web.middleware
async def forward(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer here, or have a peer answer. What another daemon has passed on is answered here."""
    services = services_of(request)
    if request.method != "POST" or request.path not in CALLS or not services.peers or HOPS in request.headers:
        return await handler(request)
    try:
        asked = await with_body(request, lambda body: msgspec.json.decode(body, type=Asked), keep=True)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):  # the handler says what is wrong with it
        return await handler(request)
    name = asked.model or services.settings.models.default
    if not name or not is_sane(name):
        return await handler(request)
    return await _Forwarding(request, handler, name, asked).answer()


class _Forwarding:
    """One request for a model of this name; see `Ways`."""

    def __init__(self, request: web.Request, handler: Handler, name: str, asked: Asked) -> None:
        kept = asked.kept if request.path.startswith(_RESPONSES) else None
        self._request = request
        self._handler = handler
        self._name = name
        self._ways = Ways(request, name, request.path, kept)
        self._services = services_of(request)
        self._relay = PeerRelay(request, CALLS[request.path], streams=asked.streams(request.path))
        # those that have failed otherwise than by a lost connection, which a second try may find again
        self._given_up: set[Peer | None] = set()
        self._asked: dict[str, None] = {}

    async def answer(self) -> web.StreamResponse:
        """The answer of the first who gives one. Raises what the last one failed with."""
        try:
            return await self._first_of_all()
        except Exception as error:
            # a status line is out already
            if not self._relay.begun:
                raise
            return await self._relay.fail(error)

    async def _first_of_all(self) -> web.StreamResponse:
        failure: Exception | None = None
        for again in (False, True):
            ways = self._ways.now()
            if again or not ways:
                await self._services.peers.look_again(self._ways.knowers())
                ways = [way for way in self._ways.now() if way.peer not in self._given_up]
            if failure is None and all(way.peer is None for way in ways):
                return await self._here()
            for way in ways:
                try:
                    return await self._take(way)
                except Exception as error:
                    if not _may_go_on(error):
                        raise
                    failure = error
                    if not isinstance(error, PeerLost) or not error.may_be_back:
                        self._given_up.add(way.peer)
                    log.info("peer.next", peer=way.option.peer, model=self._name, error=str(error))
        assert failure is not None, "each way has failed, and none is a way too"
        return await self._give_up(failure)

    async def _take(self, way: Way) -> web.StreamResponse:
        if way.peer is not None:
            if self._services.registry.closing:
                raise ShuttingDown
            self._asked[way.peer.name] = None
            body = await with_body(self._request, partial(self._outgoing, model=way.model), keep=True)
            return await self._relay.answer(way.peer, way.model, body)
        self._relay.pass_on()
        with body_kept(self._request):
            return await self._handler(self._request)

    async def _here(self) -> web.StreamResponse:
        """No peer has to do with it, unless it is one that is left alone. Raises PeerUnavailable for that."""
        silent = [peer.name for peer in self._ways.knowers() if not peer.is_up]
        if self._ways.here() is None and silent:
            raise self._unavailable(silent)
        return await self._handler(self._request)

    def _unavailable(self, peers: Iterable[str]) -> PeerUnavailable:
        """What a client is told; why is the operator's to know."""
        message = f"peer {' and '.join(peers)} has model {self._name} and does not answer as it should"
        return PeerUnavailable(f"{message}; the daemon's log and `mlxd peers` say why")

    async def _give_up(self, failure: Exception) -> web.StreamResponse:
        if isinstance(failure, PeerRefused):
            if failure.event:
                return await self._relay.end(failure.event)
            if failure.response is not None and not self._relay.begun:
                return failure.response
        if isinstance(failure, PeerRefused | PeerLost):
            failure = self._unavailable(self._asked)
        return await self._relay.fail(failure)

    def _outgoing(self, body: bytes, model: str) -> bytes:
        """The body as the peer is to get it; all but a few fields as it came."""
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        fields["model"] = msgspec.Raw(msgspec.json.encode(model))
        if self._request.path == _RESPONSES:
            fields["store"] = msgspec.Raw(b"false")
        return msgspec.json.encode(fields)


def _may_go_on(error: Exception) -> bool:
    """Whether somebody else may answer what failed so; a stream of this daemon that has begun ends there."""
    if isinstance(error, ShuttingDown):
        return False
    return isinstance(error, PeerLost | PeerRefused) or describe(error, "").status in _ELSEWHERE
