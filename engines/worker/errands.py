"""What a worker is asked for and tells when it has done it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count

import msgspec

from mlxd.engines.worker import to_daemon, to_worker


class Errands:
    """Used on the event loop."""

    def __init__(self, send: Callable[[msgspec.Struct], None]) -> None:
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._numbers = count(1)
        self._reclaims: dict[int, asyncio.Future[None]] = {}
        self._steps_held: asyncio.Future[bool] = self._loop.create_future()

    async def reclaim(self) -> None:
        """Have it give free buffers back to the system."""
        number = next(self._numbers)
        self._reclaims[number] = done = self._loop.create_future()
        self._send(to_worker.Reclaim(number))
        try:
            await done
        finally:
            self._reclaims.pop(number, None)

    def hold_steps(self, seconds: float) -> asyncio.Future[bool]:
        """Have it begin no step; whether the running one has ended within so many seconds."""
        self._steps_held = held = self._loop.create_future()
        self._send(to_worker.HoldSteps(seconds))
        return held

    def done(self, message: to_daemon.Reclaimed | to_daemon.StepsHeld) -> None:
        """It has done what it was asked for."""
        match message:
            case to_daemon.Reclaimed(number):
                self._reclaimed(number)
            case to_daemon.StepsHeld(ended):
                self._held(ended=ended)

    def end(self) -> None:
        """The worker is gone, and with it all that it was asked for is done."""
        self._held(ended=True)
        for number in list(self._reclaims):
            self._reclaimed(number)

    def _reclaimed(self, number: int) -> None:
        done = self._reclaims.get(number)
        if done is not None and not done.done():
            done.set_result(None)

    def _held(self, *, ended: bool) -> None:
        if not self._steps_held.done():
            self._steps_held.set_result(ended)
