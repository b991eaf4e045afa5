"""A worker's share of the memory: the daemon keeps the books, and measures."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from itertools import count

from mlxd.engines.memory_share import OFF, Brake
from mlxd.engines.worker.channel import Channel
from mlxd.engines.worker.to_daemon import MemoryCall, MemorySet, WakeMe
from mlxd.engines.worker.to_worker import MemoryAnswer

# Bytes by which a promise may be other than what the daemon was last told: it changes with every token.
SLACK = 1_000_000


class WorkerStake:
    """See Stake: for the lane, but for `answered`, `brake` and `woken`.

    A lane waits for an answer as long as it takes: the daemon watches over its steps, and the process ends with it.
    """

    def __init__(self, channel: Channel, brake: Brake = OFF) -> None:
        self.brake = brake
        self.limit = ""
        self._channel = channel
        self._lock = threading.Lock()
        self._numbers = count(1)
        self._asked: dict[int, Future[MemoryAnswer]] = {}
        # what the daemon has in its books
        self._promised = self._running = 0
        self._waker: Callable[[], None] | None = None

    def claim(self, nbytes: int) -> int | None:
        left = self._ask("claim", nbytes)
        if left is None:
            self._promised = nbytes
        return left

    def room(self) -> int | None:
        return self._ask("room")

    def spare(self) -> int | None:
        return self._ask("spare")

    def growth_left(self) -> int | None:
        return self._ask("growth_left")

    def others_run(self) -> bool:
        return bool(self._ask("others_run"))

    def set(self, promised: int, running: int) -> None:
        told = self._promised
        same = running == self._running and bool(promised) == bool(told) and abs(promised - told) < SLACK
        if not same:
            self._promised, self._running = promised, running
            self._channel.send(MemorySet(promised, running))

    def wake(self, waker: Callable[[], None]) -> None:
        with self._lock:
            first = self._waker is None
            self._waker = waker
        if first:
            self._channel.send(WakeMe())

    def forget(self) -> None:
        """The daemon forgets by itself what a worker had."""
        with self._lock:
            self._waker = None

    def answered(self, answer: MemoryAnswer) -> None:
        """The daemon has answered."""
        self.limit = answer.limit
        with self._lock:
            asked = self._asked.pop(answer.number, None)
        if asked is not None:
            asked.set_result(answer)

    def woken(self) -> None:
        """Memory may have come free."""
        with self._lock:
            waker, self._waker = self._waker, None
        if waker is not None:
            waker()

    def _ask(self, method: str, nbytes: int = 0) -> int | None:
        answer: Future[MemoryAnswer] = Future()
        with self._lock:
            number = next(self._numbers)
            self._asked[number] = answer
        self._channel.send(MemoryCall(number, method, nbytes))
        return answer.result().value
