"""When to leave a peer alone, and when to look again."""

from __future__ import annotations

import math

# Failed requests in a row, after which a peer is left alone although it tells its models.
FAILURES = 3
# Seconds until it is looked at again; doubled with each time that it is left alone or a look fails.
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 30.0


class Breaker:
    """A circuit breaker: closed, requests go through; open, none does until a look has worked. Times are monotonic.

    It starts open, and due at once: nothing is known of a peer before the first look. A look that works says nothing of
    requests: after one, the next that fails opens a breaker again that they had opened.
    """

    def __init__(self) -> None:
        self._failures = 0
        self._pause = FIRST_PAUSE
        self.is_open = True
        self.unreachable = 0
        """Looks in a row that came to nothing, and requests that found nobody."""
        self.retry_at = -math.inf

    def worked(self) -> None:
        """A request was answered as it should."""
        self._failures = self.unreachable = 0
        self._pause = FIRST_PAUSE
        self.is_open = False

    def reached(self) -> None:
        """A look has worked."""
        if self._failures == 0:
            self._pause = FIRST_PAUSE
        self._failures = min(self._failures, FAILURES - 1)
        self.unreachable = 0
        self.is_open = False

    def failed(self, now: float) -> bool:
        """A request failed; whether that opens the breaker."""
        self._failures += 1
        return self._failures >= FAILURES and self._open(now)

    def missed(self, now: float, *, lengthen: bool = True) -> bool:
        """It cannot be reached; whether that opens the breaker. `lengthen` the pause unless somebody was in a hurry."""
        self.unreachable += 1
        return self._open(now, lengthen=lengthen)

    def _open(self, now: float, *, lengthen: bool = True) -> bool:
        opens, self.is_open = not self.is_open, True
        if opens or lengthen:
            self.retry_at = now + self._pause
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
        return opens
