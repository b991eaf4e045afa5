"""Writes what a worker logs and prints with the daemon's own log, as far as that is bearable."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import structlog

from mlxd.engines.worker.frames import from_json
from mlxd.engines.worker.to_daemon import LogLine

log = structlog.stdlib.get_logger(__name__)

# Lines of one worker that are logged at a stretch, and a second from then on: each takes the event loop's time.
STRETCH = 1000
RATE = 100.0
# Seconds between two reports of how many were not.
REPORT = 5.0

# Names that mean something to the log itself.
_TAKEN = frozenset({"self", "level", "event", "logger", "timestamp", "exc_info", "stack_info"})


class LogRelay:
    """For one worker; `pid` gives its process."""

    def __init__(self, model: str, pid: Callable[[], int | None], clock: Callable[[], float] = time.monotonic) -> None:
        self._model = model
        self._pid = pid
        self._clock = clock
        self._left = float(STRETCH)
        self._looked_at = clock()
        self._dropped = 0
        self._reported_at = float("-inf")

    def line(self, line: LogLine) -> None:
        """Log a line under the name of the logger that it had there."""
        if self._passes():
            logger = structlog.stdlib.get_logger(line.logger)
            logger.log(_level(line.level), line.event, **{"model": self._model, **_fields(line)})

    def output(self, line: str) -> None:
        """Log what it wrote to its standard error."""
        if self._passes():
            log.warning("worker.output", model=self._model, pid=self._pid(), line=line)

    def left_out(self, count: int) -> None:
        """So many lines are not even known."""
        self._dropped += count

    def report(self) -> None:
        """Tell how many were not logged; to be called now and then."""
        if self._clock() - self._reported_at >= REPORT:
            self.close()

    def close(self) -> None:
        """No more comes."""
        if self._dropped:
            log.warning("worker.lines_dropped", model=self._model, pid=self._pid(), lines=self._dropped)
            self._dropped, self._reported_at = 0, self._clock()

    def _passes(self) -> bool:
        now = self._clock()
        self._left = min(float(STRETCH), self._left + (now - self._looked_at) * RATE)
        self._looked_at = now
        if self._left < 1:
            self._dropped += 1
            return False
        self._left -= 1
        return True


def _level(level: int) -> int:
    """The standard level that is not above it."""
    return min(logging.CRITICAL, max(logging.DEBUG, level // 10 * 10))


def _fields(line: LogLine) -> dict[str, object]:
    fields: dict[str, object] = from_json(line.fields)
    return {f"its_{name}" if name in _TAKEN or name.startswith("_") else name: fields[name] for name in fields}
