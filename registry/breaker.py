"""When to leave a peer alone, and when to look again."""

from __future__ import annotations

import math

# Failures in a row of a peer that can be reached, after which it is left alone.
FAILURES = 3
# Seconds until it is looked at again; doubled with each look that fails.
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 30.0


class Breaker:
    """A circuit breaker: closed, requests go through; open, none does until a look has worked. Times are monotonic.

    It starts open, and due at once: nothing is known of a peer before the first look.
    """

    def __init__(self) -> None:
        self._failures = 0
        self._pause = FIRST_PAUSE
        self.is_open = True
        self.retry_at = -math.inf

    def worked(self) -> None:
        """It answered as it should."""
        self._failures = 0
        self._pause = FIRST_PAUSE
        self.is_open = False

    def failed(self, now: float, *, unreachable: bool) -> bool:
        """It did not; whether that opens the breaker. One that cannot be reached at all opens it at once."""
        self._failures += 1
        if not self.is_open and not unreachable and self._failures < FAILURES:
            return False
        opens, self.is_open = not self.is_open, True
        self.retry_at = now + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        return opens
