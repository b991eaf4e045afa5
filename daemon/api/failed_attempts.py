"""Tells the log of calls that were turned away, so that a flood of them does not fill it."""

from __future__ import annotations

import asyncio
import contextvars

import structlog
from aiohttp import web

from mlxd.daemon.api.errors import describe
from mlxd.daemon.api.refusals import TurnedAway

log = structlog.stdlib.get_logger(__name__)

WINDOW = 60.0
"""Seconds for which further attempts from one address are only counted."""

MAX_ADDRESSES = 64
OTHERS = "others"

_UNIX = "unix socket"


class FailedAttempts:
    """One line for the first attempt from an address, one for those that followed within the window, for each code.

    Addresses beyond so many in one window share a line. Used on the event loop only.
    """

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = {}
        self._end: asyncio.TimerHandle | None = None

    def note(self, address: str | None, error: TurnedAway) -> None:
        """One more attempt from there; None and "" stand for the Unix socket."""
        place = (address or _UNIX, describe(error, "").code)
        if place not in self._counts and len(self._counts) >= MAX_ADDRESSES:
            place = (OTHERS, place[1])
        if place not in self._counts:
            log.warning("auth.refused", address=place[0], code=place[1], attempts=1, message=str(error))
        self._counts[place] = self._counts.get(place, 0) + 1
        if self._end is None:
            # in a context of its own: what is told then is not about the request that happened to be the first
            self._end = asyncio.get_running_loop().call_later(WINDOW, self.tell, context=contextvars.Context())

    def tell(self) -> None:
        """Log what was only counted, and begin a new window with the next attempt."""
        if self._end is not None:
            self._end.cancel()
            self._end = None
        counts, self._counts = self._counts, {}
        for (address, code), count in counts.items():
            if count > 1:
                log.warning("auth.refused", address=address, code=code, attempts=count - 1)


ATTEMPTS = web.AppKey("failed_attempts", FailedAttempts)
