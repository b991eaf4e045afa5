"""One peer: what is known of it, and who waits for it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from fnmatch import fnmatchcase

import structlog

from mlxd.daemon.peers.listing import Listing, PeerModel
from mlxd.daemon.settings import PeerSettings
from mlxd.registry.breaker import Breaker
from mlxd.registry.errors import ShuttingDown
from mlxd.registry.peer_choice import Option, Standing, spread_of

log = structlog.stdlib.get_logger(__name__)

# What servers that are no mlxd take.
OPENAI_CALLS = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/embeddings"})
# How much the latest first token counts in what is kept of all.
_NEWEST = 0.2
# Looks in a row that came to nothing, after which a stream that has been silent since is not waited for.
_GONE = 3


class PeerLost(Exception):
    """The peer did not answer as it should, or not at all, before it said anything of the answer; the text is for the
    log. `may_be_back` where only a connection was lost: a server that was started again takes the next one.
    """

    def __init__(self, message: str, *, may_be_back: bool = False) -> None:
        super().__init__(message)
        self.may_be_back = may_be_back


class Peer:
    """Used on the event loop only. `error` says why it is left alone, None while it is not."""

    def __init__(self, settings: PeerSettings) -> None:
        self.settings = settings
        self.listing = Listing({})
        self.error: str | None = "it was not asked yet"
        self.breaker = Breaker()
        self.is_new = True
        """Whether no look at it has ended yet."""
        self.idle = asyncio.Event()
        """Set while no request is with it."""
        self.idle.set()
        self.is_suspect = False
        """Whether a request has failed there since it last told its models."""
        self.first_token_s: float | None = None
        self._unanswered: Counter[str] = Counter()
        self._waits: set[asyncio.Timeout] = set()
        self._reads: set[asyncio.Timeout] = set()
        self._silent: set[asyncio.Timeout] = set()
        self._working: set[asyncio.Timeout] = set()

    @property
    def name(self) -> str:
        """What stands before the slash in names of its models."""
        return self.settings.name

    @property
    def base(self) -> str:
        """Its URL up to the paths of the API."""
        return self.settings.url.rstrip("/").removesuffix("/v1")

    @property
    def in_flight(self) -> int:
        """Requests that are with it."""
        return len(self._working)

    @property
    def awaited(self) -> int:
        """Requests that wait for its first byte."""
        return len(self._waits)

    @property
    def is_up(self) -> bool:
        """Whether requests go there."""
        return not self.breaker.is_open

    @property
    def models(self) -> Mapping[str, PeerModel]:
        """Its models when it last told, by name."""
        return self.listing.models

    def usable(self) -> list[PeerModel]:
        """Its models that are wanted from it; none while it is left alone."""
        return [model for model in self.models.values() if self.may_have(model.name)] if self.is_up else []

    def takes_call(self, path: str) -> bool:
        """Whether it answers this call."""
        return self.listing.is_mlxd or path in OPENAI_CALLS

    def may_have(self, model: str) -> bool:
        """Whether a model of this name is one of those that are wanted from it."""
        return any(fnmatchcase(model, pattern) for pattern in self.settings.models)

    def option(self, model: str) -> Option:
        """What it offers for a model, which it lists or not."""
        spread, known = spread_of(self.name, model), self.models.get(model)
        if known is None or known.standing is not Standing.READY:
            waiting = self.listing.waiting + self._unanswered.total()
            return Option(self.name, Standing.LOADS_THERE, self.settings.priority, waiting, spread=spread)
        waiting = known.waiting + self._unanswered[model]
        return Option(self.name, known.standing, self.settings.priority, waiting, self.first_token_s, spread)

    def looked(self, listing: Listing) -> None:
        """It told its models."""
        if not self.is_up:
            log.info("peer.up", peer=self.name, url=self.settings.url, models=len(listing.models))
        self.listing, self.error, self.is_suspect, self.is_new = listing, None, False, False
        self.breaker.reached()

    def missed(self, error: str, now: float, *, lengthen: bool = True) -> None:
        """It cannot be reached. Who waits for its first byte stops waiting, and after some such looks who has read
        nothing since the first of them.
        """
        opens = self.breaker.missed(now, lengthen=lengthen)
        self._leave_alone(error, opens=opens)
        self.is_new = False
        if opens:
            _end(self._waits)
        if self.breaker.unreachable == 1:
            self._silent = set(self._reads)
        if self.breaker.unreachable >= _GONE:
            _end(self._silent & self._reads)

    def failed(self, error: str, now: float) -> None:
        """A request failed there. What others wait for may still come."""
        self.is_suspect = True
        opens = self.breaker.failed(now)
        if self.breaker.is_open:
            self._leave_alone(error, opens=opens)

    def _leave_alone(self, error: str, *, opens: bool) -> None:
        self.error = error
        if opens:
            log.warning("peer.down", peer=self.name, url=self.settings.url, error=error)

    def worked(self) -> None:
        """It answered a request as it should."""
        self.breaker.worked()
        self.error, self.is_suspect = None, False

    def answered(self, seconds: float) -> None:
        """A request had its first token after so many seconds."""
        self.worked()
        before = self.first_token_s
        self.first_token_s = seconds if before is None else before + _NEWEST * (seconds - before)

    def end_all(self) -> None:
        """Every request that is with it raises ShuttingDown."""
        _end(self._working)

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """While a request is with it. Raises ShuttingDown when the daemon ends meanwhile."""
        self.idle.clear()
        try:
            async with _scope(self._working, ShuttingDown()):
                yield
        finally:
            if not self._working:
                self.idle.set()

    @asynccontextmanager
    async def unanswered(self, model: str) -> AsyncIterator[None]:
        """While a request waits for its first byte. Raises PeerLost when the peer cannot be reached any more."""
        self._unanswered[model] += 1
        try:
            async with _scope(self._waits, PeerLost(f"peer {self.name} is gone", may_be_back=True)):
                yield
        finally:
            self._unanswered[model] -= 1
            if not self._unanswered[model]:
                del self._unanswered[model]

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """While more of an answer is waited for. Raises PeerLost when the peer has not been reached for a while."""
        async with _scope(self._reads, PeerLost(f"peer {self.name} is gone")):
            yield


@asynccontextmanager
async def _scope(scopes: set[asyncio.Timeout], error: Exception) -> AsyncIterator[None]:
    """Inside, whoever ends the scope has this raised."""
    scope = asyncio.timeout(None)
    try:
        async with scope:
            scopes.add(scope)
            yield
    except TimeoutError:
        if not scope.expired():
            raise
        raise error from None
    finally:
        scopes.discard(scope)


def _end(scopes: set[asyncio.Timeout]) -> None:
    for scope in scopes:
        scope.reschedule(asyncio.get_running_loop().time())
