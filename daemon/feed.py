"""The feed of what happens: numbered events in a bounded ring, and readers that each have a place in it."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import msgspec

from mlxd.daemon.numbered_events import TAKEN_BYTES, event_frame, first_number

# Bytes of events that a reader may be behind before it gets a snapshot instead.
RING_BYTES = 4 * 2**20
# Seconds for which events are kept when the last reader is gone, so that it can come back without a snapshot.
LINGER = 120.0


class _Event(NamedTuple):
    number: int
    frame: bytes


class Feed:
    """Events with one number each, kept as the bytes that readers get. Used on the event loop only.

    Numbers count up from a place drawn at the start, so that no number of an earlier daemon is near one of this.
    Nothing is numbered while nobody reads, nor has lately. Whoever publishes sets `snapshot`, which gives all that
    events are about, as of the last number; it may publish.
    """

    def __init__(
        self,
        *,
        first: int | None = None,
        ring_bytes: int = RING_BYTES,
        linger: float = LINGER,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.snapshot: Callable[[], Mapping[str, object]] = dict
        self.closed = False
        self._number = first_number() if first is None else first
        self._ring: deque[_Event] = deque()
        self._ring_bytes = 0
        self._most_bytes = ring_bytes
        self._linger = linger
        self._clock = clock
        self._readers: set[FeedReader] = set()
        self._left_at = 0.0
        self._records = False

    @property
    def readers(self) -> int:
        """How many read now."""
        return len(self._readers)

    def is_wanted(self) -> bool:
        """Whether anybody reads or has lately; if not, what was kept for those who come back goes."""
        if self._records and not self._readers and self._clock() - self._left_at > self._linger:
            self._records = False
            self._ring.clear()
            self._ring_bytes = 0
            # whoever had the last number misses what happens from here on
            self._number += 1
        return self._records and not self.closed

    def publish(self, name: str, item: object) -> None:
        """Number an event and hand it to all readers. `item` is what JSON can say."""
        if not self.is_wanted():
            return
        self._number += 1
        event = _Event(self._number, _frame(self._number, name, {"seq": self._number, name: item}))
        self._ring.append(event)
        self._ring_bytes += len(event.frame)
        while self._ring_bytes > self._most_bytes:
            self._ring_bytes -= len(self._ring.popleft().frame)
        for reader in self._readers:
            reader.news.set()

    @contextmanager
    def reader(self, since: int | None = None) -> Iterator[FeedReader]:
        """Read from after the event `since` if all that followed it is still kept, else from a snapshot."""
        kept = self.is_wanted() and since is not None and self._oldest <= since <= self._number
        reader = FeedReader(self, since if kept else None)
        self._readers.add(reader)
        self._records = True
        try:
            yield reader
        finally:
            self._readers.remove(reader)
            self._left_at = self._clock()

    def close(self) -> None:
        """The end of all readers, once they have read what there is. Nothing is published any more."""
        if self.closed:
            return
        self.closed = True
        for reader in self._readers:
            reader.news.set()
            reader.on_close()

    @property
    def _oldest(self) -> int:
        """The last number of which every later event is kept."""
        return self._ring[0].number - 1 if self._ring else self._number

    def after(self, number: int | None) -> tuple[int, bytes]:
        """What follows a number: at most TAKEN_BYTES of events or one more, or a snapshot if some are lost.

        And the number up to which that goes.
        """
        if number is None or number < self._oldest:
            shown = self.snapshot()
            return self._number, _frame(self._number, "snapshot", {"seq": self._number, **shown})
        frames, size = [], 0
        for event in self._ring_from(number + 1):
            frames.append(event.frame)
            size += len(event.frame)
            number = event.number
            if size >= TAKEN_BYTES:
                break
        return number, b"".join(frames)

    def _ring_from(self, number: int) -> list[_Event]:
        """The events from a number on; most readers want only the last few."""
        wanted: list[_Event] = []
        for event in reversed(self._ring):
            if event.number < number:
                break
            wanted.append(event)
        return wanted[::-1]


class FeedReader:
    """One reader's place in the feed. It holds no events, so a reader that stands still costs nothing."""

    def __init__(self, feed: Feed, number: int | None) -> None:
        self.news = asyncio.Event()
        self.on_close: Callable[[], None] = lambda: None
        self._feed = feed
        self._number = number

    def take(self) -> bytes:
        """The next events as server-sent events, a snapshot if this reader is new or too far behind, or nothing."""
        self._number, data = self._feed.after(self._number)
        if not data:
            self.news.clear()
        return data

    @property
    def ended(self) -> bool:
        """Whether nothing will follow."""
        return self._feed.closed

    async def wait(self) -> None:
        """Return when there may be something to take, or the feed is closed."""
        if not self._feed.closed:
            await self.news.wait()


def _frame(number: int, name: str, data: Mapping[str, object]) -> bytes:
    return event_frame(number, name, msgspec.json.encode(data))
