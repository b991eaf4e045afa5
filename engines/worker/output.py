"""What a worker writes to its standard error: anything, in any amount."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

# Lines that are kept at most, of the begin and of the end of the last burst: a dump of all threads says first what it
# is about. And how many characters of each.
KEPT_LINES = 20
LONGEST_LINE = 500
# Seconds without output after which a burst is over.
_BURST = 1.0
# Bytes of a line: a character has up to four.
_LONGEST = 4 * LONGEST_LINE
# Lines of one piece that are looked at.
_MOST = 100


class Output:
    """Cuts it into lines, for `tell`; `left_out` takes how many there were too many to be told."""

    def __init__(
        self,
        tell: Callable[[str], None],
        left_out: Callable[[int], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tell = tell
        self._left_out = left_out
        self._clock = clock
        self._first: list[str] = []
        self._last: deque[str] = deque(maxlen=KEPT_LINES)
        self._fed_at = float("-inf")
        self._begun = b""

    @property
    def kept(self) -> tuple[str, ...]:
        """The first and the last lines of the last burst."""
        return (*self._first, *self._last)

    def feed(self, data: bytes) -> None:
        """A piece of it."""
        now = self._clock()
        if now - self._fed_at > _BURST:
            self._first, self._last = [], deque(maxlen=KEPT_LINES)
        self._fed_at = now
        first, *others = data.split(b"\n")
        lines = [self._begun + first, *others]
        self._begun = lines.pop()[:_LONGEST]
        if len(lines) > _MOST:
            self._left_out(len(lines) - _MOST)
            lines[_MOST // 2 : -_MOST // 2] = []
        for line in lines:
            self._line(line)

    def close(self) -> None:
        """No more comes: what was begun is a line too."""
        self._line(self._begun)
        self._begun = b""

    def _line(self, line: bytes) -> None:
        text = line[:_LONGEST].decode(errors="replace").rstrip()[:LONGEST_LINE]
        if not text:
            return
        (self._first if len(self._first) < KEPT_LINES else self._last).append(text)
        self._tell(text)
