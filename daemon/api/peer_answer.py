"""A request that a peer answers, as this daemon's lists and cancels see it."""

from __future__ import annotations

import asyncio
import time

import aiohttp
import structlog

from mlxd.daemon.api.running import LiveRequest
from mlxd.daemon.peers.peer import Peer
from mlxd.daemon.peers.peers import Peers
from mlxd.engines.types import RequestState, RequestStatus, Usage

log = structlog.stdlib.get_logger(__name__)

CANCEL_TIMEOUT = 5.0


class PeerAnswer:
    """Stands where an engine would. Used on the event loop only; `close` is the twin of making it."""

    def __init__(self, peers: Peers, peer: Peer, live: LiveRequest) -> None:
        self._peers = peers
        self._peer = peer
        self._id = live.id
        self._since = time.monotonic()
        self._cancels: set[asyncio.Task[None]] = set()
        self.there: str | None = None
        """The id of the request at the peer, once it has said that it has it."""
        self.decoding = False

    def cancel(self, _: str) -> bool:
        """Have the peer end it, as far as it can: only an mlxd gives its reader what was generated."""
        if not self._peer.listing.is_mlxd or self._cancels:
            return bool(self._cancels)
        task = asyncio.create_task(self._cancel(self.there or self._id), name="peer.cancel")
        self._cancels.add(task)
        return True

    def requests(self) -> tuple[RequestStatus, ...]:
        """The one request."""
        state = RequestState.DECODING if self.decoding else RequestState.WAITING
        return (RequestStatus(self._id, state, time.monotonic() - self._since, Usage(0)),)

    async def close(self) -> None:
        """It is over."""
        for task in self._cancels:
            task.cancel()
        if self._cancels:
            await asyncio.wait(self._cancels)

    async def _cancel(self, request_id: str) -> None:
        url, headers = f"{self._peer.base}/v1/requests/{request_id}", self._peers.headers(self._peer)
        try:
            async with asyncio.timeout(CANCEL_TIMEOUT), self._peers.session.delete(url, headers=headers) as answer:
                status = answer.status
        except (aiohttp.ClientError, TimeoutError) as error:
            log.warning("peer.not_cancelled", peer=self._peer.name, error=repr(error))
            return
        if status != 200:  # noqa: PLR2004
            log.warning("peer.not_cancelled", peer=self._peer.name, error=f"status {status}")
