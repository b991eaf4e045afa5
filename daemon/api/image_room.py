"""Bounds the memory of images that are read, prepared or wait to be encoded, over all requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from mlxd.daemon.api.refusals import ImagesQueueFull

# Bytes of room where nobody says how many there are.
LEAST_ROOM = 2**28


class Claim:
    """What one request holds of the room, in bytes."""

    def __init__(self, count: int = 0, changed: Callable[[int], None] = lambda _: None) -> None:
        self.bytes = count
        self._changed = changed

    def resize(self, count: int) -> None:
        """It is so many bytes now; more than there is room for is taken all the same, as it is there already."""
        more, self.bytes = count - self.bytes, count
        self._changed(more)


class ImageRoom:
    """Bytes for the images of requests, in the order in which they come. Used on the event loop only.

    `size` tells how many there are. A request that needs more than that gets in when nobody else holds any, so that
    there is room for each alone. As much again may wait; what comes then is refused.
    """

    def __init__(self, size: Callable[[], int] = lambda: LEAST_ROOM) -> None:
        self._size = size
        self._held = 0
        self._waiting: dict[Claim, asyncio.Event] = {}

    @property
    def held(self) -> int:
        """Bytes that are taken."""
        return self._held

    @property
    def free(self) -> int:
        """Bytes that the next one could have, 0 or more."""
        return max(0, self._size() - self._held)

    @asynccontextmanager
    async def hold(self, count: int) -> AsyncIterator[Claim]:
        """Wait for so many bytes, and hold them. Raises ImagesQueueFull."""
        claim = Claim(count, self._change)
        await self._enter(claim)
        try:
            yield claim
        finally:
            self._change(-claim.bytes)

    async def _enter(self, claim: Claim) -> None:
        waits = sum(each.bytes for each in self._waiting)
        if self._waiting and waits + claim.bytes > self._size():
            raise ImagesQueueFull("images of other requests wait for memory already; retry later")
        let_in = self._waiting[claim] = asyncio.Event()
        self._let_in()
        try:
            await let_in.wait()
        except asyncio.CancelledError:
            if self._waiting.pop(claim, None) is None:
                self._held -= claim.bytes
            self._let_in()
            raise

    def _change(self, more: int) -> None:
        self._held += more
        self._let_in()

    def _let_in(self) -> None:
        """The longest waiting one goes first, and nobody passes it."""
        while self._waiting:
            claim = next(iter(self._waiting))
            if self._held and self._held + claim.bytes > self._size():
                return
            self._held += claim.bytes
            self._waiting.pop(claim).set()
