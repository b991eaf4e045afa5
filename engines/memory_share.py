"""How the engines of a process share its memory: what one has promised to its prompts, no other may give away.

Any thread may call anything here. The measuring callables are handed in: this room knows neither the guard nor the
limits that it keeps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count


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


class MemoryShare:
    """The part that all engines have in common. Bytes; None for no limit.

    `headroom` measures what prompts may take now, `growth_room` what running sequences may. `limit` names what bounds
    them.
    """

    def __init__(
        self,
        headroom: Callable[[], int | None] = _unlimited,
        growth_room: Callable[[], int | None] = _unlimited,
        limit: Callable[[], str] = lambda: "",
    ) -> None:
        self.brake = OFF
        self._headroom = headroom
        self._growth_room = growth_room
        self._limit = limit
        self._lock = threading.Lock()
        self._promised: dict[str, int] = {}
        self._running: dict[str, int] = {}
        self._wakers: dict[str, Callable[[], None]] = {}
        self._stakes = count(1)

    def stake(self, name: str, most: Callable[[], int | None] = _unlimited) -> MemoryStake:
        """One engine's face of it. `most` is what a prompt of this engine could have at all, however others fare.

        Each has books of its own: an engine that was abandoned may answer when its model has another.
        """
        return MemoryStake(self, f"{name} {next(self._stakes)}", most)

    def brake_to(self, brake: Brake) -> None:
        """From here on all engines keep to this."""
        self.brake = brake
        self.changed()

    def reserve(self, name: str, nbytes: int) -> None:
        """Keep bytes back for somebody who is no engine yet: a model that is being loaded. 0 takes it back."""
        with self._lock:
            ended = nbytes <= 0 and name in self._promised
            self._set(self._promised, name, nbytes)
        if ended:
            self.changed()

    def changed(self) -> None:
        """Memory may have come free: wake the engines that wait for it, each once."""
        with self._lock:
            wakers, self._wakers = self._wakers, {}
        for wake in wakers.values():
            wake()

    def limit(self) -> str:
        """What bounds the memory, by name."""
        return self._limit()

    def claim(self, name: str, nbytes: int) -> int | None:
        """Promise so many bytes in all to an engine's sequences, if they are there. None when they are; else what is,
        measured now, and nothing changes.
        """
        with self._lock:
            room = self._room(name)
            if room is None or nbytes <= room:
                self._set(self._promised, name, nbytes)
                return None
            return room

    def room(self, name: str) -> int | None:
        """What an engine may promise in all, measured now."""
        with self._lock:
            return self._room(name)

    def spare(self) -> int | None:
        """What nobody was promised, measured now."""
        with self._lock:
            return self._room("")

    def growth_left(self, name: str) -> int | None:
        """What running sequences of an engine may take now: nothing of what others were promised."""
        with self._lock:
            room = self._growth_room()
            return None if room is None else room - self._promised_to_others(name)

    def set(self, name: str, promised: int, running: int) -> None:
        """What an engine has promised and not taken yet, and how many sequences it runs; fewer wake the others.

        A promise gets smaller with each token that is taken, which frees nothing.
        """
        with self._lock:
            fewer = running < self._running.get(name, 0) or (not promised and name in self._promised)
            self._set(self._promised, name, promised)
            self._set(self._running, name, running)
        if fewer:
            self.changed()

    def forget(self, name: str) -> None:
        """An engine is gone."""
        with self._lock:
            self._wakers.pop(name, None)
        self.set(name, 0, 0)

    def others_run(self, name: str) -> bool:
        """Whether any other engine runs sequences, which will free memory, or a model is on its way."""
        with self._lock:
            return any(other != name for other in (*self._running, *self._promised))

    def wake(self, name: str, waker: Callable[[], None]) -> None:
        """Call this once when memory may have come free."""
        with self._lock:
            self._wakers[name] = waker

    def _room(self, name: str) -> int | None:
        room = self._headroom()
        if room is None:
            return None
        return room - self._promised_to_others(name)

    def _promised_to_others(self, name: str) -> int:
        return sum(promised for other, promised in self._promised.items() if other != name)

    @staticmethod
    def _set(table: dict[str, int], name: str, value: int) -> None:
        if value > 0:
            table[name] = value
        else:
            table.pop(name, None)


@dataclass(frozen=True, slots=True)
class MemoryStake:
    """The share under one engine's name."""

    share: MemoryShare
    name: str
    most: Callable[[], int | None] = _unlimited

    @property
    def brake(self) -> Brake:
        return self.share.brake

    @property
    def limit(self) -> str:
        return self.share.limit()

    def claim(self, nbytes: int) -> int | None:
        """Promise so many bytes in all to this engine's sequences, if they are there. None when they are; else what
        is, measured now, and nothing changes.
        """
        return self.share.claim(self.name, nbytes)

    def room(self) -> int | None:
        """Bytes that could be promised in all, measured now."""
        return self.share.room(self.name)

    def spare(self) -> int | None:
        """Bytes that no engine was promised, measured now."""
        return self.share.spare()

    def growth_left(self) -> int | None:
        """Bytes that running sequences may take now."""
        return self.share.growth_left(self.name)

    def set(self, promised: int, running: int) -> None:
        """Tell the others what was promised and is not taken yet, and how many sequences run."""
        self.share.set(self.name, promised, running)

    def others_run(self) -> bool:
        return self.share.others_run(self.name)

    def wake(self, waker: Callable[[], None]) -> None:
        """Call this once when memory may have come free."""
        self.share.wake(self.name, waker)

    def forget(self) -> None:
        self.share.forget(self.name)
