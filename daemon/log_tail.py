"""The last lines of the log, for whoever reads them while the daemon runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import NamedTuple

import msgspec

from mlxd.daemon.numbered_events import TAKEN_BYTES, event_frame, first_number

# Bytes of lines that are kept.
KEPT_BYTES = 4 * 2**20
# Bytes of one line; of a longer one the head is kept.
LINE_BYTES = 64 * 2**10


class LogLine(NamedTuple):
    """One line as JSON without its number; `level` is logging's."""

    number: int
    level: int
    data: bytes

    def numbered(self) -> bytes:
        """The JSON with its number as `seq`."""
        return b'{"seq": %d, %b' % (self.number, self.data[1:])


class LogTail:
    """Lines with one number each, counted up from a place drawn at the start. Any thread may add; readers are on event
    loops.
    """

    def __init__(self, *, first: int | None = None, kept_bytes: int = KEPT_BYTES) -> None:
        self._number = first_number() if first is None else first
        # a finalizer may log wherever it is run: in the middle of all this, too
        self._lock = threading.RLock()
        self._lines: deque[LogLine] = deque()
        self._bytes = 0
        self._most_bytes = kept_bytes
        self._readers: set[LogReader] = set()
        self.closed = False

    def add(self, level: int, data: bytes) -> None:
        """Number a line, which is a JSON object."""
        if len(data) > LINE_BYTES:
            data = _head(data)
        with self._lock:
            self._number = number = self._number + 1
            self._lines.append(LogLine(number, level, data))
            self._bytes += len(data)
            while self._bytes > self._most_bytes:
                self._bytes -= len(self._lines.popleft().data)
            readers = list(self._readers)
        for reader in readers:
            reader.tell()

    def last(self, count: int, level: int) -> list[LogLine]:
        """The newest lines of a level or above, oldest first."""
        with self._lock:
            newest = self._newest(len(self._lines))
        return list(islice((line for line in newest if line.level >= level), count))[::-1]

    def after(self, number: int, level: int) -> tuple[int, list[LogLine]]:
        """The next lines of a level or above, at most TAKEN_BYTES or one more, and the number up to which that goes."""
        with self._lock:
            newest = self._newest(max(0, self._number - number))
        lines, size = [], 0
        for line in reversed(newest):
            number = line.number
            if line.level >= level:
                lines.append(line)
                size += len(line.data)
            if size >= TAKEN_BYTES:
                break
        return number, lines

    def _newest(self, count: int) -> list[LogLine]:
        """So many of the last lines, newest first: most readers want only a few."""
        while True:
            try:
                return list(islice(reversed(self._lines), count))
            except RuntimeError:  # a finalizer has logged just now, and there is one more
                continue

    @contextmanager
    def reader(self, since: int | None, level: int) -> Iterator[LogReader]:
        """Read what comes from now on, or what is kept of what came after `since`. Enter it on the event loop.

        A number that this log has not come to yet is one of an earlier daemon: then all that is kept is new.
        """
        with self._lock:
            number = self._number if since is None else since if since <= self._number else -1
            reader = LogReader(self, number, level)
            self._readers.add(reader)
        try:
            yield reader
        finally:
            with self._lock:
                self._readers.discard(reader)

    def close(self) -> None:
        """The end of all readers, once they have read what there is."""
        self.closed = True
        with self._lock:
            readers = list(self._readers)
        for reader in readers:
            reader.tell()
            reader.on_close()


class LogReader:
    """One reader's place in the log. It holds no lines."""

    def __init__(self, tail: LogTail, number: int, level: int) -> None:
        self.news = asyncio.Event()
        self.news.set()
        self.on_close: Callable[[], None] = lambda: None
        self._tail = tail
        self._number = number
        self._level = level
        self._loop = asyncio.get_running_loop()

    def tell(self) -> None:
        """There is news; called on any thread."""
        with contextlib.suppress(RuntimeError):  # the event loop is gone
            self._loop.call_soon_threadsafe(self.news.set)

    def take(self) -> bytes:
        """The next lines as server-sent events, or nothing."""
        self.news.clear()
        self._number, lines = self._tail.after(self._number, self._level)
        if not lines:
            return b""
        self.news.set()
        return b"".join(event_frame(line.number, "log", line.numbered()) for line in lines)

    @property
    def ended(self) -> bool:
        """Whether nothing will follow."""
        return self._tail.closed

    async def wait(self) -> None:
        """Return when there may be something to take, or the log is closed."""
        if not self._tail.closed:
            await self.news.wait()


class TailHandler(logging.Handler):
    """Adds what is logged, formatted as a JSON object."""

    def __init__(self, tail: LogTail, formatter: logging.Formatter) -> None:
        super().__init__()
        self._tail = tail
        self.setFormatter(formatter)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._tail.add(record.levelno, self.format(record).encode())
        # The handler that writes the log has told of a line that cannot be formatted.
        except Exception as error:  # noqa: BLE001
            line = {"level": "error", "event": "log.failed", "logger": record.name, "error": repr(error)}
            self._tail.add(logging.ERROR, msgspec.json.encode(line))


def _head(data: bytes) -> bytes:
    """What is left of a line that is too long."""
    line = msgspec.json.decode(data)
    kept = {name: line.get(name) for name in ("timestamp", "level", "event", "logger", "model", "request_id")}
    shortened = {**kept, "event": str(kept["event"])[:200], "left_out": f"{len(data)} bytes; the log itself has them"}
    return msgspec.json.encode({name: value for name, value in shortened.items() if value is not None})
