"""Watches the footprint: assesses readings for everybody, and calls for action at the limits."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Any

import structlog

from mlxd.memory.crossing import CeilingEvent, CrossingDetector, MemoryEvent, RecoveredEvent, SoftEvent
from mlxd.memory.delivery import Delivery
from mlxd.memory.footprint import MemoryLimits, Reading
from mlxd.memory.probe import MemoryProbe

log = structlog.stdlib.get_logger(__name__)

# a probe that keeps failing is logged on its first failure and then once in so many
_FAILURES_PER_LOG = 120

Pause = Callable[[asyncio.Event, float], Awaitable[None]]


async def pause(stop: asyncio.Event, seconds: float) -> None:
    """Wait so many seconds, or less when `stop` is set."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()


class MemoryGuard:
    """The last guard before the kernel's. `latest` and `headroom` may be used from any thread.

    `clock` gives seconds; `wait` pauses the watch. Assign `limits` to change them while it watches, and `on_reading`
    to be told each time that it has measured; `retime` changes how often that is.
    """

    def __init__(
        self,
        probe: MemoryProbe,
        limits: MemoryLimits,
        clock: Callable[[], float] = time.monotonic,
        *,
        wait: Pause = pause,
        soft_repeat: float = 5.0,
    ) -> None:
        self.limits = limits
        self.on_reading: Callable[[Reading], None] = lambda _: None
        self._probe = probe
        self._clock = clock
        self._wait = wait
        self._detector = CrossingDetector(soft_repeat)
        self._latest: Reading | None = None
        self._failures = 0
        self._interval = 0.0
        self._rest: asyncio.Timeout | None = None

    @property
    def latest(self) -> Reading | None:
        """The last reading, None before the first."""
        return self._latest

    def sample(self) -> Reading:
        """Measure and assess now. Raises what the probe raises."""
        footprint = self._probe.sample()
        reading = Reading(footprint, self.limits.pressure(footprint.bytes), self._clock())
        self._latest = reading
        return reading

    def headroom(self, max_age: float = 1.0) -> int:
        """Bytes until the soft limit, MLX's reclaimable cache counted as free; negative above it.

        Measures when the latest reading is older than `max_age` seconds. With a probe that fails the latest
        reading has to do; without any, raises what the probe raised.
        """
        reading = self._latest
        if reading is None:
            reading = self.sample()
        elif self._clock() - reading.at > max_age:
            reading = self._try_sample() or reading
        footprint = reading.footprint
        return self.limits.soft_bytes - (footprint.bytes - footprint.reclaimable)

    async def watch(
        self,
        interval: float,
        on_soft: Callable[[SoftEvent], Awaitable[None]],
        on_ceiling: Callable[[CeilingEvent], Awaitable[None]],
        on_recovered: Callable[[RecoveredEvent], Awaitable[None]],
        stop: asyncio.Event,
    ) -> None:
        """Measure every `interval` seconds, or as `retime` says, and call back as CrossingDetector says, until `stop`.

        Callbacks run beside the watch, each kind one at a time, so a slow eviction cannot delay an abort.
        Neither a failing probe nor a failing callback ends the watch; both are logged. Whatever still runs at
        the end, by `stop` or by cancellation, is cancelled.
        """
        self._interval = interval
        async with (
            Delivery("on_soft", on_soft) as soft,
            Delivery("on_ceiling", on_ceiling) as ceiling,
            Delivery("on_recovered", on_recovered) as recovered,
        ):
            deliveries: dict[type[MemoryEvent], Delivery[Any]] = {
                SoftEvent: soft,
                CeilingEvent: ceiling,
                RecoveredEvent: recovered,
            }
            while not stop.is_set():
                for event in self._observe():
                    deliveries[type(event)].put(event)
                await self._pause(stop)

    def retime(self, interval: float) -> None:
        """Measure every `interval` seconds from now on, beginning at once; for the watch's own event loop."""
        self._interval = interval
        if self._rest is not None and not self._rest.expired():
            self._rest.reschedule(asyncio.get_running_loop().time())

    async def _pause(self, stop: asyncio.Event) -> None:
        rest = asyncio.timeout(None)
        try:
            async with rest:
                self._rest = rest
                await self._wait(stop, self._interval)
        except TimeoutError:
            if not rest.expired():
                raise
        finally:
            self._rest = None

    def _observe(self) -> list[MemoryEvent]:
        reading = self._try_sample()
        if reading is None:
            return []
        events = self._detector.observe(reading.footprint.bytes, self.limits, reading.at)
        for event in events:
            _log_event(event)
        self.on_reading(reading)
        return events

    def _try_sample(self) -> Reading | None:
        try:
            reading = self.sample()
        except Exception as error:  # noqa: BLE001 - the last guard goes on, whatever its probe does
            if self._failures % _FAILURES_PER_LOG == 0:
                log.warning("memory.probe_failed", error=repr(error), failures=self._failures + 1)
            self._failures += 1
            return None
        self._failures = 0
        return reading


def _log_event(event: MemoryEvent) -> None:
    match event:
        case CeilingEvent():
            log.error("memory.ceiling", bytes=event.footprint_bytes, ceiling=event.ceiling_bytes, limit=event.limit)
        case SoftEvent():
            log.warning("memory.soft", bytes=event.footprint_bytes, soft=event.soft_bytes, pressure=event.pressure)
        case RecoveredEvent():
            log.info("memory.recovered", bytes=event.footprint_bytes, soft=event.soft_bytes)
