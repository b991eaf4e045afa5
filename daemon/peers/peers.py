"""All peers: asks each for its models again and again, and knows who offers what."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial

import aiohttp
import structlog

from mlxd.daemon.peers.headers import HOPS, INSTANCE
from mlxd.daemon.peers.listing import BadListing, read_listing
from mlxd.daemon.peers.peer import Peer
from mlxd.daemon.settings import PeerSettings
from mlxd.registry.peer_choice import Option

log = structlog.stdlib.get_logger(__name__)

# Seconds between two looks at a peer that answers.
INTERVAL = 5.0
# Seconds for one look, and for a connection.
LOOK_TIMEOUT = 5.0
CONNECT_TIMEOUT = 3.0
# A request that finds nobody has those looked at that were last looked at so many seconds ago.
_FRESH = 1.0
_MOST_BYTES = 16_000_000
_OK = 200
# Connections to one peer; a stream keeps one for as long as it lasts.
_CONNECTIONS = 0


class Peers:
    """Used on the event loop only. `settings` gives those that are in effect; their order is that of the file."""

    def __init__(
        self,
        settings: Callable[[], Iterable[PeerSettings]] = tuple,
        *,
        clock: Callable[[], float] = time.monotonic,
        interval: float = INTERVAL,
    ) -> None:
        self.instance = secrets.token_hex(8)
        self._settings = settings
        self._clock = clock
        self._interval = interval
        self._peers: dict[str, Peer] = {}
        self._looked: dict[str, float] = {}
        self._looks: dict[str, asyncio.Task[None]] = {}
        self._session: aiohttp.ClientSession | None = None
        self._replaced: list[Peer] = []

    def __bool__(self) -> bool:
        return bool(self._current())

    def all(self) -> list[Peer]:
        """Every peer, whether it can be reached or not."""
        return list(self._current().values())

    def get(self, name: str | None) -> Peer | None:
        """The peer of this name."""
        return self._current().get(name or "")

    def named(self, model: str) -> tuple[Peer, str] | None:
        """The peer and the name there that `peer/name` means."""
        name, slash, rest = model.partition("/")
        peer = self.get(name)
        return (peer, rest) if peer is not None and slash and rest else None

    def options(self, path: str, model: str) -> list[Option]:
        """Who answers this call now for a model of this name."""
        found = [peer.option(model) for peer in self.all() if peer.takes_call(path)]
        return [option for option in found if option is not None]

    @property
    def session(self) -> aiohttp.ClientSession:
        """Connections to all peers; made with the first use, on the event loop."""
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=_CONNECTIONS)
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT)
            self._session = aiohttp.ClientSession(
                connector=connector, timeout=timeout, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=True
            )
        return self._session

    async def run(self) -> None:
        """Look at each peer when it is due, until the daemon stops."""
        try:
            while True:
                for peer in self.all():
                    if self._is_due(peer):
                        self._look_soon(peer)
                await asyncio.sleep(min(1.0, self._interval))
        finally:
            await self._end()

    async def look_again(self, peers: Iterable[Peer]) -> None:
        """Ask those once more that have just failed, or are left alone and were not asked a moment ago.

        Gives up after LOOK_TIMEOUT.
        """
        looks = [self._look_soon(peer) for peer in peers if self._is_stale(peer)]
        if looks:
            await asyncio.wait(looks)

    async def drain(self, seconds: float) -> None:
        """Wait until no request is with a peer, and end those that are after so many seconds."""
        peers = [*self.all(), *self._replaced]
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await asyncio.gather(*(peer.idle.wait() for peer in peers))
        for peer in peers:
            peer.end_all()

    def headers(self, peer: Peer) -> dict[str, str]:
        """What each request to it has."""
        key = {} if peer.settings.key is None else {"Authorization": f"Bearer {peer.settings.key}"}
        return {HOPS: "1", "User-Agent": "mlxd", **key}

    def _current(self) -> dict[str, Peer]:
        """Peers by name; what is known of one stays until its entry is another one."""
        wanted = tuple(self._settings())
        if [peer.settings for peer in self._peers.values()] != list(wanted):
            before = self._peers
            self._peers = {one.name: self._kept(before.get(one.name), one) for one in wanted}
            gone = [peer for peer in before.values() if self._peers.get(peer.name) is not peer]
            self._replaced = [peer for peer in (*self._replaced, *gone) if peer.in_flight]
        return self._peers

    def _kept(self, before: Peer | None, settings: PeerSettings) -> Peer:
        if before is not None and (before.settings.url, before.settings.key) == (settings.url, settings.key):
            before.settings = settings
            return before
        self._looked.pop(settings.name, None)
        return Peer(settings)

    def _is_due(self, peer: Peer) -> bool:
        if not peer.is_up:
            return self._clock() >= peer.breaker.retry_at
        return self._age(peer) >= self._interval

    def _is_stale(self, peer: Peer) -> bool:
        return peer.is_suspect or peer.name in self._looks or (not peer.is_up and self._age(peer) >= _FRESH)

    def _age(self, peer: Peer) -> float:
        looked = self._looked.get(peer.name)
        return float("inf") if looked is None else self._clock() - looked

    def _look_soon(self, peer: Peer) -> asyncio.Task[None]:
        if peer.name not in self._looks:
            self._looked[peer.name] = self._clock()
            task = asyncio.create_task(self._look(peer), name="peer.look")
            self._looks[peer.name] = task
            task.add_done_callback(partial(self._looked_at, peer.name))
        return self._looks[peer.name]

    def _looked_at(self, name: str, look: asyncio.Task[None]) -> None:
        if self._looks.get(name) is look:
            del self._looks[name]

    async def _look(self, peer: Peer) -> None:
        try:
            async with asyncio.timeout(LOOK_TIMEOUT):
                await self._ask(peer)
        except TimeoutError:
            self._fail(peer, f"it does not answer within {LOOK_TIMEOUT:g} s")
        except aiohttp.ClientError as error:
            self._fail(peer, f"it cannot be reached: {error}")
        except BadListing as error:
            self._fail(peer, str(error))
        # Whatever one peer sends, the next look is needed.
        except Exception as error:
            log.exception("peer.look_broke", peer=peer.name)
            self._fail(peer, repr(error))

    async def _ask(self, peer: Peer) -> None:
        async with self.session.get(f"{peer.base}/v1/models", headers=self.headers(peer)) as answer:
            if answer.status != _OK:
                raise BadListing(_refusal(answer.status))
            data = await answer.content.read(_MOST_BYTES + 1)
            while len(data) <= _MOST_BYTES and (more := await answer.content.readany()):
                data += more
            if len(data) > _MOST_BYTES:
                raise BadListing(f"its list of models has more than {_MOST_BYTES} bytes")
            instance = answer.headers.get(INSTANCE)
        if instance == self.instance:
            raise BadListing("it is this daemon itself; remove the entry")
        peer.looked(read_listing(data, is_mlxd=instance is not None))

    def fail(self, peer: Peer, error: Exception) -> None:
        """A request that it had failed."""
        unreachable = isinstance(error, aiohttp.ClientConnectorError)
        peer.failed(str(error) or type(error).__name__, self._clock(), unreachable=unreachable)

    def _fail(self, peer: Peer, error: str) -> None:
        peer.failed(error, self._clock(), unreachable=True)

    async def _end(self) -> None:
        looks = list(self._looks.values())
        for look in looks:
            look.cancel()
        if looks:
            await asyncio.wait(looks)
        if self._session is not None:
            await self._session.close()


def _refusal(status: int) -> str:
    if status in (401, 403):
        return f"it does not take the key of its entry (status {status})"
    return f"it answers GET /v1/models with status {status}"
