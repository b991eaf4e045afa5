"""How the engines of a process share its memory: what one has promised to its prompts, no other may give away.

Any thread may call anything here. The measuring callables are handed in: this room knows neither the guard nor the
limits that it keeps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Brake:
    """What the memory guard asks of all engines: `hold` starts no prompt beside others, `slow` takes them in the
    smallest chunks.
    """

    hold: bool = False
    slow: bool = False


OFF = Brake()


def _unlimited() -> int | None:
    return None


class Stake(Protocol):
    """One engine's share of the memory, as its lane sees it; see MemoryStake for what each method promises."""

    @property
    def brake(self) -> Brake: ...

    @property
    def limit(self) -> str: ...

    def claim(self, nbytes: int) -> int | None: ...

    def room(self) -> int | None: ...

    def spare(self) -> int | None: ...

    def growth_left(self) -> int | None: ...

    def set(self, promised: int, running: int) -> None: ...

    def others_run(self) -> bool: ...

    def wake(self, waker: Callable[[], None]) -> None: ...

    def forget(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Books:
    """Promised bytes, running sequences and who is to be woken, by a stake's name; `lock` is held for each look."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    promised: dict[str, int] = field(default_factory=dict)
    running: dict[str, int] = field(default_factory=dict)
    wakers: dict[str, Callable[[], None]] = field(default_factory=dict)

    def left(self, room: int | None, name: str = "") -> int | None:
        """Of so much room, what is promised to nobody else."""
        if room is None:
            return None
        return room - sum(promised for other, promised in self.promised.items() if other != name)


class MemoryShare:
    """The part that all engines have in common. Bytes; None for no limit.

    `headroom` measures what prompts may take now, `growth_room` what running sequences may. `limit` names what bounds
    them. `brake_watchers` are told of another brake; on the event loop only.
    """

    def __init__(
        self,
        headroom: Callable[[], int | None] = _unlimited,
        growth_room: Callable[[], int | None] = _unlimited,
        limit: Callable[[], str] = lambda: "",
    ) -> None:
        self.brake = OFF
        self.headroom = headroom
        self.growth_room = growth_room
        self.limit = limit
        self.brake_watchers: set[Callable[[Brake], None]] = set()
        self._books = _Books()
        self._stakes = count(1)

    def stake(self, name: str, most: Callable[[], int | None] = _unlimited) -> MemoryStake:
        """One engine's face of it. `most` is what a prompt of this engine could have at all, however others fare.

        Each has books of its own: an engine that was abandoned may answer when its model has another.
        """
        return MemoryStake(self, f"{name} {next(self._stakes)}", self._books, most)

    def brake_to(self, brake: Brake) -> None:
        """From here on all engines keep to this."""
        self.brake = brake
        for watcher in list(self.brake_watchers):
            watcher(brake)
        self.changed()

    def reserve(self, name: str, nbytes: int) -> None:
        """Keep bytes back for somebody who is no engine yet: a model that is being loaded. 0 takes it back."""
        with self._books.lock:
            ended = nbytes <= 0 and name in self._books.promised
            _note(self._books.promised, name, nbytes)
        if ended:
            self.changed()

    def changed(self) -> None:
        """Memory may have come free: wake the engines that wait for it, each once."""
        with self._books.lock:
            wakers = list(self._books.wakers.values())
            self._books.wakers.clear()
        for wake in wakers:
            wake()

    def spare(self) -> int | None:
        """What nobody was promised, measured now."""
        with self._books.lock:
            return self._books.left(self.headroom())

    @property
    def promised(self) -> int:
        """Bytes that were promised, to all together, and are not taken yet."""
        with self._books.lock:
            return sum(self._books.promised.values())


class MemoryStake:
    """The share under one engine's name; `most` is what one of its prompts could have at all."""

    def __init__(self, share: MemoryShare, name: str, books: _Books, most: Callable[[], int | None]) -> None:
        self.most = most
        self._share = share
        self._name = name
        self._books = books

    @property
    def share(self) -> MemoryShare:
        """What all engines have in common."""
        return self._share

    @property
    def brake(self) -> Brake:
        """What the guard asks of all engines now."""
        return self._share.brake

    @property
    def limit(self) -> str:
        """What bounds the memory, by name."""
        return self._share.limit()

    def claim(self, nbytes: int) -> int | None:
        """Promise so many bytes in all to this engine's sequences, if they are there. None when they are; else what
        is, measured now, and nothing changes.
        """
        with self._books.lock:
            room = self._books.left(self._share.headroom(), self._name)
            if room is not None and nbytes > room:
                return room
            _note(self._books.promised, self._name, nbytes)
            return None

    def room(self) -> int | None:
        """Bytes that could be promised in all, measured now."""
        with self._books.lock:
            return self._books.left(self._share.headroom(), self._name)

    def spare(self) -> int | None:
        """Bytes that no engine was promised, measured now."""
        return self._share.spare()

    def growth_left(self) -> int | None:
        """Bytes that running sequences may take now: nothing of what others were promised."""
        with self._books.lock:
            return self._books.left(self._share.growth_room(), self._name)

    def set(self, promised: int, running: int) -> None:
        """What was promised and is not taken yet, and how many sequences run; fewer wake the others.

        A promise gets smaller with each token that is taken, which frees nothing.
        """
        books, name = self._books, self._name
        with books.lock:
            fewer = running < books.running.get(name, 0) or (not promised and name in books.promised)
            _note(books.promised, name, promised)
            _note(books.running, name, running)
        if fewer:
            self._share.changed()

    def others_run(self) -> bool:
        """Whether any other engine runs sequences, which will free memory, or a model is on its way."""
        with self._books.lock:
            return any(other != self._name for other in (*self._books.running, *self._books.promised))

    def wake(self, waker: Callable[[], None]) -> None:
        """Call this once when memory may have come free."""
        with self._books.lock:
            self._books.wakers[self._name] = waker

    def forget(self) -> None:
        """The engine is gone."""
        with self._books.lock:
            self._books.wakers.pop(self._name, None)
        self.set(0, 0)


def _note(table: dict[str, int], name: str, value: int) -> None:
    if value > 0:
        table[name] = value
    else:
        table.pop(name, None)
