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
from mlxd.registry.errors import ShuttingDown

log = structlog.stdlib.get_logger(__name__)

# Seconds between two looks at a peer that answers.
INTERVAL = 5.0
# Seconds for one look, and for a connection.
LOOK_TIMEOUT = 5.0
CONNECT_TIMEOUT = 3.0
# A request that finds nobody has those looked at that were last looked at so many seconds ago.
_FRESH = 1.0
_MOST_BYTES = 4_000_000
# Bytes of a listing that are read in a moment.
_QUICK = 65_536
_OK = 200
_WRONG_KEY = (401, 403)
# Connections at a time: a stream keeps one for as long as it lasts.
_ANY_NUMBER = 0


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
        self._replaced: list[Peer] = []
        self._looked: dict[Peer, float] = {}
        self._looks: dict[Peer, asyncio.Task[None]] = {}
        self._session: aiohttp.ClientSession | None = None
        self._ended = False

    def __bool__(self) -> bool:
        return bool(self._current())

    def all(self) -> list[Peer]:
        """Every peer, whether it can be reached or not."""
        return list(self._current().values())

    def named(self, model: str) -> tuple[Peer, str] | None:
        """The peer and the name there that `peer/name` means."""
        name, slash, rest = model.partition("/")
        peer = self._current().get(name)
        return (peer, rest) if peer is not None and slash and rest else None

    @property
    def session(self) -> aiohttp.ClientSession:
        """Connections to all peers; made with the first use, on the event loop. Raises ShuttingDown after the end."""
        if self._ended:
            raise ShuttingDown
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=_ANY_NUMBER),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session

    def headers(self, peer: Peer) -> dict[str, str]:
        """What each request to it has."""
        key = {} if peer.settings.key is None else {"Authorization": f"Bearer {peer.settings.key}"}
        return {HOPS: "1", "User-Agent": "mlxd", **key}

    def fail(self, peer: Peer, error: Exception) -> None:
        """A request that it had failed, or found nobody."""
        said = str(error) or type(error).__name__
        if isinstance(error, aiohttp.ClientConnectorError):
            peer.missed(said, self._clock())
        else:
            peer.failed(said, self._clock())

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
        """Ask those once more where a request has just failed, or that could not be reached a while ago.

        Gives up after LOOK_TIMEOUT.
        """
        looks = [self._look_soon(peer, in_a_hurry=True) for peer in peers if self._is_stale(peer)]
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

    def _current(self) -> dict[str, Peer]:
        """Peers by name; what is known of one stays until its entry is another one."""
        wanted = tuple(self._settings())
        if [peer.settings for peer in self._peers.values()] != list(wanted):
            before = self._peers
            self._peers = {one.name: _kept(before.get(one.name), one) for one in wanted}
            for peer in set(before.values()).difference(self._peers.values()):
                self._part_with(peer)
        return self._peers

    def _part_with(self, peer: Peer) -> None:
        self._replaced = [one for one in (*self._replaced, peer) if one.in_flight]
        self._looked.pop(peer, None)
        if look := self._looks.get(peer):
            look.cancel()

    def _is_due(self, peer: Peer) -> bool:
        if not peer.is_up:
            return self._clock() >= peer.breaker.retry_at
        return self._age(peer) >= self._interval

    def _is_stale(self, peer: Peer) -> bool:
        if peer in self._looks or (peer.is_up and peer.is_suspect):
            return True
        # one that requests have failed at has its pause: that it tells its models would say nothing of them
        lost = not peer.is_up and (peer.is_new or peer.breaker.unreachable > 0)
        return lost and self._age(peer) >= _FRESH

    def _age(self, peer: Peer) -> float:
        looked = self._looked.get(peer)
        return float("inf") if looked is None else self._clock() - looked

    def _look_soon(self, peer: Peer, *, in_a_hurry: bool = False) -> asyncio.Task[None]:
        if peer not in self._looks:
            self._looked[peer] = self._clock()
            task = asyncio.create_task(self._look(peer, in_a_hurry=in_a_hurry), name="peer.look")
            self._looks[peer] = task
            task.add_done_callback(lambda _: self._looks.pop(peer, None))
        return self._looks[peer]

    async def _look(self, peer: Peer, *, in_a_hurry: bool) -> None:
        missed = partial(peer.missed, now=self._clock(), lengthen=not in_a_hurry)
        try:
            async with asyncio.timeout(LOOK_TIMEOUT):
                await self._ask(peer)
        except TimeoutError:
            missed(f"it does not answer within {LOOK_TIMEOUT:g} s")
        except aiohttp.ClientError as error:
            missed(f"it cannot be reached: {error}")
        except BadListing as error:
            missed(str(error))
        except ShuttingDown:
            return
        # Whatever one peer sends, the next look is needed.
        except Exception as error:
            log.exception("peer.look_broke", peer=peer.name)
            missed(repr(error))

    async def _ask(self, peer: Peer) -> None:
        async with self.session.get(f"{peer.base}/v1/models", headers=self.headers(peer)) as answer:
            if answer.status != _OK:
                raise BadListing(_refusal(answer.status))
            data = await _all_of(answer)
            instance = answer.headers.get(INSTANCE)
        if instance == self.instance:
            raise BadListing("it is this daemon itself; remove the entry")
        read = partial(read_listing, data, is_mlxd=instance is not None)
        peer.looked(read() if len(data) <= _QUICK else await asyncio.to_thread(read))

    async def _end(self) -> None:
        self._ended = True
        looks = list(self._looks.values())
        for look in looks:
            look.cancel()
        if looks:
            await asyncio.wait(looks)
        if self._session is not None:
            await self._session.close()


def _kept(before: Peer | None, settings: PeerSettings) -> Peer:
    if before is not None and (before.settings.url, before.settings.key) == (settings.url, settings.key):
        before.settings = settings
        return before
    return Peer(settings)


async def _all_of(answer: aiohttp.ClientResponse) -> bytes:
    data = bytearray()
    async for piece in answer.content.iter_any():
        data += piece
        if len(data) > _MOST_BYTES:
            raise BadListing(f"its list of models has more than {_MOST_BYTES} bytes")
    return bytes(data)


def _refusal(status: int) -> str:
    if status in _WRONG_KEY:
        return f"it does not take the key of its entry (status {status})"
    return f"it answers GET /v1/models with status {status}"
