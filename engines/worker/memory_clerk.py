"""Answers what a worker asks of its engine's share of the memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import structlog

from mlxd.engines.memory_share import OFF, Brake, MemoryStake
from mlxd.engines.worker.to_daemon import MemoryCall, MemorySet, WakeMe
from mlxd.engines.worker.to_worker import BrakeTo, MemoryAnswer, MemoryMayBeFree

log = structlog.stdlib.get_logger(__name__)


class MemoryClerk:
    """Used on the event loop."""

    def __init__(self, stake: MemoryStake, send: Callable[[msgspec.Struct], None]) -> None:
        self._stake = stake
        self._send = send
        self._loop = asyncio.get_running_loop()

    def open(self) -> None:
        """Tell the worker of brakes; the twin of `close`."""
        self._stake.share.brake_watchers.add(self._braked)
        if self._stake.brake != OFF:
            self._braked(self._stake.brake)

    def close(self) -> None:
        """The worker is gone, and has no memory any more."""
        self._stake.share.brake_watchers.discard(self._braked)
        self._stake.forget()

    def take(self, message: MemoryCall | MemorySet | WakeMe) -> None:
        """Do what the worker wants, and answer."""
        match message:
            case MemoryCall(number):
                self._send(MemoryAnswer(number, self._answer(message), self._stake.limit))
            case MemorySet(promised, running):
                self._stake.set(promised, running)
            case WakeMe():
                self._stake.wake(self._wake)

    def _answer(self, call: MemoryCall) -> int | None:
        try:
            return self._measured(call)
        # A lane waits for this: without a measurement there is nothing to give.
        except Exception:
            log.exception("worker.memory_unread", method=call.method)
            return 0

    def _measured(self, call: MemoryCall) -> int | None:
        match call.method:
            case "claim":
                return self._stake.claim(call.nbytes)
            case "room":
                return self._stake.room()
            case "spare":
                return self._stake.spare()
            case "growth_left":
                return self._stake.growth_left()
            case "others_run":
                return int(self._stake.others_run())
        raise ValueError(f"there is no {call.method}")

    def _wake(self) -> None:
        """On any thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._send, MemoryMayBeFree())

    def _braked(self, brake: Brake) -> None:
        self._send(BrakeTo(brake.hold, brake.slow))
