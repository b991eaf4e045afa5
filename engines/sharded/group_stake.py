"""A sharded engine's share of the memory: what this machine has for all of its ranks here, and every other host for
its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mlxd.engines.memory_share import Brake, Stake


class GroupStake:
    """See Stake. Bytes are those of one rank: every rank takes about as much as rank 0.

    `here` ranks are on this machine, `rooms` gives what the others' hosts still have.
    """

    def __init__(self, own: Stake, here: int, rooms: Callable[[], Mapping[str, int]]) -> None:
        self._own = own
        self._here = here
        self._rooms = rooms
        self._short: str | None = None

    @property
    def brake(self) -> Brake:
        return self._own.brake

    @property
    def limit(self) -> str:
        return self._own.limit if self._short is None else f"memory of {self._short}"

    def claim(self, nbytes: int) -> int | None:
        there = self._least()
        if there is not None and nbytes > there:
            return there
        left = self._own.claim(nbytes * self._here)
        return None if left is None else self._bounded(left)

    def room(self) -> int | None:
        return self._bounded(self._own.room())

    def spare(self) -> int | None:
        return self._bounded(self._own.spare())

    def growth_left(self) -> int | None:
        return self._bounded(self._own.growth_left())

    def set(self, promised: int, running: int) -> None:
        self._own.set(promised * self._here, running)

    def others_run(self) -> bool:
        return self._own.others_run()

    def wake(self, waker: Callable[[], None]) -> None:
        self._own.wake(waker)

    def forget(self) -> None:
        self._own.forget()

    def _bounded(self, own: int | None) -> int | None:
        """What one rank may have, by this machine and by the others."""
        here, there = None if own is None else own // self._here, self._least()
        if there is not None and (here is None or there < here):
            return there
        self._short = None
        return here

    def _least(self) -> int | None:
        """What the host has that has least, beside this machine."""
        rooms = self._rooms()
        self._short = min(rooms, key=rooms.__getitem__, default=None)
        return None if self._short is None else rooms[self._short]
