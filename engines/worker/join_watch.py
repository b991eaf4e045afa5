"""Watches the other ranks of a model while rank 0 joins them: MLX holds its interpreter until all have joined."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

# Seconds between two looks.
LOOK = 0.1


class JoinWatch:
    """`has_ended` tells of a process whether it is gone; `on_ended` is called with the title of one that is, once."""

    def __init__(self, has_ended: Callable[[int], bool], on_ended: Callable[[str], None]) -> None:
        self._has_ended = has_ended
        self._on_ended = on_ended
        self._loop = asyncio.get_running_loop()
        self._pids: Mapping[str, int] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def watches(self) -> bool:
        """Whether ranks join each other now."""
        return bool(self._pids)

    def watch(self, pids: Mapping[str, int]) -> None:
        """Look at these processes from now on, and at no others; they have titles."""
        self.stop()
        self._pids = pids
        self._look()

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        if ended := next((title for title, pid in self._pids.items() if self._has_ended(pid)), None):
            self._on_ended(ended)
        elif self._pids:
            self._timer = self._loop.call_later(LOOK, self._look)
