"""Whose turn it is, told to and by the daemon: a load steps aside for engines of other processes too."""

from __future__ import annotations

from mlxd.engines.turns import Turns
from mlxd.engines.worker.channel import Channel
from mlxd.engines.worker.to_daemon import Working


class WorkerTurns(Turns):
    """As Turns, with the engines of other processes among those at work."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel
        self._elsewhere = 0

    def begin(self) -> None:
        super().begin()
        self._channel.send(Working(True))

    def end(self) -> None:
        super().end()
        self._channel.send(Working(False))

    def others(self, count: int) -> None:
        """So many are at work in other processes now."""
        for _ in range(self._elsewhere, count):
            super().begin()
        for _ in range(count, self._elsewhere):
            super().end()
        self._elsewhere = count
