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


class PeerLost(Exception):
    """The peer did not answer as it should, or not at all, before it said anything of the answer."""


class Peer:
    """Used on the event loop only. `error` says why it is left alone, None while it is not."""

    def __init__(self, settings: PeerSettings) -> None:
        self.settings = settings
        self.listing = Listing({})
        self.error: str | None = "it was not asked yet"
        self.breaker = Breaker()
        self.idle = asyncio.Event()
        """Set while no request is with it."""
        self.idle.set()
        self.is_suspect = False
        """Whether a request has failed there since it last told its models."""
        self._told = False
        self.first_token_s: float | None = None
        self._unanswered: Counter[str] = Counter()
        self._waits: set[asyncio.Timeout] = set()
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
    def is_new(self) -> bool:
        """Whether it has never told its models."""
        return not self._told

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

    def option(self, model: str) -> Option | None:
        """What it offers for a model; None when it has none of this name, or is left alone."""
        known = self.listing.models.get(model)
        if known is None or not self.is_up or not self.may_have(model):
            return None
        spread = spread_of(self.name, model)
        if known.standing is not Standing.READY:
            waiting = sum(one.waiting for one in self.models.values()) + self._unanswered.total()
            return Option(self.name, known.standing, self.settings.priority, waiting, spread=spread)
        waiting = known.waiting + self._unanswered[model]
        return Option(self.name, known.standing, self.settings.priority, waiting, self.first_token_s, spread)

    def unlisted(self) -> Option:
        """What it offers for a model that it does not list."""
        return Option(self.name, Standing.LOADS_THERE, self.settings.priority)

    def looked(self, listing: Listing) -> None:
        """It told its models."""
        if self.error is not None:
            log.info("peer.up", peer=self.name, url=self.settings.url, models=len(listing.models))
        self.listing, self.error, self._told, self.is_suspect = listing, None, True, False
        self.breaker.worked()

    def failed(self, error: str, now: float, *, unreachable: bool) -> None:
        """It did not answer as it should. When it is to be left alone, who waits for its first byte stops waiting."""
        self.is_suspect = True
        if self.breaker.failed(now, unreachable=unreachable):
            log.warning("peer.down", peer=self.name, url=self.settings.url, error=error)
            for wait in self._waits:
                wait.reschedule(asyncio.get_running_loop().time())
        if self.breaker.is_open:
            self.error = error

    def answered(self, seconds: float) -> None:
        """A request had its first token after so many seconds."""
        self.worked()
        before = self.first_token_s
        self.first_token_s = seconds if before is None else before + _NEWEST * (seconds - before)

    def worked(self) -> None:
        """It answered a request as it should."""
        self.breaker.worked()
        self.error, self.is_suspect = None, False

    def end_all(self) -> None:
        """Every request that is with it raises ShuttingDown."""
        for scope in self._working:
            scope.reschedule(asyncio.get_running_loop().time())

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """While a request is with it. Raises ShuttingDown when the daemon ends meanwhile."""
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._working.add(scope)
                self.idle.clear()
                yield
        except TimeoutError:
            if not scope.expired():
                raise
            raise ShuttingDown from None
        finally:
            self._working.discard(scope)
            if not self._working:
                self.idle.set()

    @asynccontextmanager
    async def unanswered(self, model: str) -> AsyncIterator[None]:
        """While a request waits for its first byte. Raises PeerLost when the peer is given up meanwhile."""
        self._unanswered[model] += 1
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._waits.add(scope)
                yield
        except TimeoutError:
            if not scope.expired():
                raise
            raise PeerLost(f"peer {self.name}: {self.error}") from None
        finally:
            self._waits.discard(scope)
            self._unanswered[model] -= 1
            if not self._unanswered[model]:
                del self._unanswered[model]
