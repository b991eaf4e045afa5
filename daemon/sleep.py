"""The machine goes to sleep and wakes: nothing is computed in between, and memory is measured anew.

`time.monotonic`, which all waits, idle times and ages of steps are counted in, stands still while macOS sleeps, so none
of them counts the sleep.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Protocol

import structlog

log = structlog.stdlib.get_logger(__name__)

PATIENCE = 10.0
"""Seconds that steps get to end before the machine may sleep; macOS waits for 30."""
SLACK = 1.0
"""Seconds beyond these after which it may in any case."""
LONGEST = 60.0
"""Seconds awake after which work goes on although nobody said that the machine has woken."""

Allow = Callable[[], None]


class SystemPower(Protocol):
    """What the operating system tells of sleep, on a thread of its own."""

    def start(self, on_sleep: Callable[[Allow], None], on_wake: Callable[[], None]) -> None:
        """From now on tell; `on_sleep` is given what lets the machine sleep, to be called once, on any thread.

        Raises OSError when the system does not tell.
        """

    def stop(self) -> None:
        """The twin of `start`."""


class Steps(Protocol):
    """The steps of all engines."""

    async def hold_steps(self, seconds: float) -> bool:
        """Let none begin any more; whether all that run have ended within so many seconds."""

    def free_steps(self) -> None:
        """The twin of `hold_steps`."""


class _Permission:
    """Lets the machine sleep once: when it is given, or by itself, whatever became of the event loop."""

    def __init__(self, allow: Allow, timeout: float) -> None:
        self._lock = threading.Lock()
        self._allow: Allow | None = allow
        self._timer = threading.Timer(timeout, self.give)
        self._timer.daemon = True
        self._timer.start()

    def give(self) -> None:
        with self._lock:
            allow, self._allow = self._allow, None
        if allow is not None:
            self._timer.cancel()
            allow()


class SleepWatch:
    """Holds work while the machine sleeps. Used on the event loop only; does nothing where `power` is None."""

    def __init__(
        self,
        power: SystemPower | None,
        steps: Steps,
        measure: Callable[[], object],
        *,
        patience: float = PATIENCE,
        longest: float = LONGEST,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._power = power
        self._steps = steps
        self._measure = measure
        self._patience = patience
        self._longest = longest
        self._clock = clock
        self._wall_clock = wall_clock
        self._awake = asyncio.Event()
        self._awake.set()
        self._since = (0.0, 0.0)

    async def awake(self) -> None:
        """Return at once, or when the machine has woken: whoever wants to load or to compute waits for that."""
        await self._awake.wait()

    async def run(self) -> None:
        """Follow what the system tells until the daemon stops."""
        if self._power is None:
            return
        loop = asyncio.get_running_loop()
        notes: asyncio.Queue[Allow | None] = asyncio.Queue()

        def on_sleep(allow: Allow) -> None:
            permission = _Permission(allow, self._patience + SLACK)
            loop.call_soon_threadsafe(notes.put_nowait, permission.give)

        def on_wake() -> None:
            loop.call_soon_threadsafe(notes.put_nowait, None)

        try:
            self._power.start(on_sleep, on_wake)
        except OSError as error:
            log.warning("system.sleep_unwatched", message=str(error))
            return
        try:
            while True:
                await self._follow(await self._next(notes))
        finally:
            self._power.stop()
            self._go_on()

    async def _next(self, notes: asyncio.Queue[Allow | None]) -> Allow | None:
        """What is told next, or that the machine has woken when that should have been told long ago."""
        try:
            async with asyncio.timeout(None if self._awake.is_set() else self._longest):
                return await notes.get()
        except TimeoutError:
            return None

    async def _follow(self, note: Allow | None) -> None:
        if note is not None:
            await self._sleep(note)
        elif not self._awake.is_set():
            self._wake()

    async def _sleep(self, allow: Allow) -> None:
        self._awake.clear()
        self._since = self._clock(), self._wall_clock()
        try:
            ended = await self._steps.hold_steps(self._patience)
            log.info("system.sleeping", steps_ended=ended, seconds=round(self._clock() - self._since[0], 3))
        finally:
            allow()

    def _wake(self) -> None:
        awake, slept = self._clock() - self._since[0], self._wall_clock() - self._since[1]
        self._go_on()
        self._measure()
        log.info("system.woke", slept_s=round(max(0.0, slept - awake), 3))

    def _go_on(self) -> None:
        self._steps.free_steps()
        self._awake.set()
