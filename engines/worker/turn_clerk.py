"""Whose turn it is, between a worker and the engines elsewhere; and for how long it has been at its step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from mlxd.engines.turns import Turns
from mlxd.engines.worker.to_worker import OthersWork


class TurnClerk:
    """Used on the event loop. The worker shares the cores, and with loads and images it steps aside for others."""

    def __init__(self, turns: Turns, send: Callable[[msgspec.Struct], None]) -> None:
        self._turns = turns
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._works = False
        self._told = 0
        self._age = self._age_at = 0.0

    def open(self) -> int:
        """Tell the worker of others from now on; how many are at work. The twin of `close`."""
        self._turns.watchers.add(self._changed)
        self._told = self._others()
        return self._told

    def close(self) -> None:
        """The worker is gone, and has no work any more."""
        self._turns.watchers.discard(self._changed)
        self.working(now=False)

    def working(self, *, now: bool) -> None:
        """Whether the worker has work."""
        if now == self._works:
            return
        self._works = now
        self.aged(0.0)
        (self._turns.begin if now else self._turns.end)()

    def aged(self, seconds: float) -> None:
        """Its loop came round so many seconds ago."""
        self._age, self._age_at = seconds, self._loop.time()

    def heartbeat_age(self) -> float:
        """As EngineRun's."""
        return self._age + self._loop.time() - self._age_at if self._works else 0.0

    def _others(self) -> int:
        return self._turns.working - self._works

    def _changed(self) -> None:
        """On any thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        others = self._others()
        if others != self._told:
            self._told = others
            self._send(OthersWork(others))
