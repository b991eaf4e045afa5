"""Watches the footprint: assesses readings for everybody, and calls for action at the limits."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import structlog

from mlxd.memory.crossing import CeilingEvent, CrossingDetector, MemoryEvent, RecoveredEvent, SoftEvent
from mlxd.memory.delivery import Delivery
from mlxd.memory.footprint import MemoryLimits, Reading
from mlxd.memory.mark_news import MarkNews, News
from mlxd.memory.probe import MemoryProbe
from mlxd.memory.soft_mark import SoftMark

log = structlog.stdlib.get_logger(__name__)

# a probe that keeps failing is logged on its first failure and then once in so many
_FAILURES_PER_LOG = 120
# above the soft mark relief is tried every few seconds, which is told once in so many seconds: others can keep the
# mark below what we cannot do without, for hours
_SOFT_LOG_S = 60.0

Pause = Callable[[asyncio.Event, float], Awaitable[None]]


async def pause(stop: asyncio.Event, seconds: float) -> None:
    """Wait so many seconds, or less when `stop` is set."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()


class MemoryGuard:
    """The last guard before the kernel's. All that measures or reads may be used from any thread.

    What is planned with is the soft mark: the configured soft limit, or less while others need the memory. The
    ceiling is the configured one, whatever happens outside.
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
        soft_mark: SoftMark | None = None,
    ) -> None:
        self.limits = limits
        self.on_reading: Callable[[Reading], None] = lambda _: None
        self._probe = probe
        self._clock = clock
        self._wait = wait
        self._detector = CrossingDetector(soft_repeat)
        self._mark = SoftMark() if soft_mark is None else soft_mark
        self._mark_news = MarkNews()
        self._assessing = threading.Lock()
        self._latest: Reading | None = None
        self._soft_told: float | None = None
        self._failures = 0
        self._interval = 0.0
        self._rest: asyncio.Timeout | None = None

    @property
    def latest(self) -> Reading | None:
        """The last reading, None before the first."""
        return self._latest

    @property
    def is_short(self) -> bool:
        """Whether a SoftEvent was told of that no RecoveredEvent has followed yet."""
        return self._detector.is_short

    @property
    def soft_now(self) -> int:
        """The soft mark that holds now, in bytes: the configured one, or less while others need the memory."""
        return _soft(self.limits, self._latest)

    @property
    def limits_now(self) -> MemoryLimits:
        """The limits with the soft mark that holds now in the place of the configured one."""
        limits = self.limits
        return replace(limits, soft_bytes=_soft(limits, self._latest))

    def sample(self) -> Reading:
        """Measure and assess now. Raises what the probe raises."""
        footprint = self._probe.sample()
        with self._assessing:
            limits, now = self.limits, self._clock()
            mark = self._mark.update(limits, footprint, now)
            pressure = replace(limits, soft_bytes=mark.bytes).pressure(footprint.bytes)
            self._latest = reading = Reading(footprint, pressure, now, mark)
        return reading

    def headroom(self, max_age: float = 1.0) -> int:
        """Bytes until the soft mark, MLX's reclaimable cache counted as free; negative above it. See `reading`."""
        reading = self.reading(max_age)
        return _soft(self.limits, reading) - reading.footprint.in_use

    def reading(self, max_age: float = math.inf) -> Reading:
        """The latest reading, or a new one when that is older than `max_age` seconds.

        With a probe that fails the latest has to do; without any, raises what the probe raised.
        """
        reading = self._latest
        if reading is None:
            return self.sample()
        if self._clock() - reading.at > max_age:
            return self._try_sample() or reading
        return reading

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
        self._tell_mark(reading)
        soft = _soft(self.limits, reading)
        events = self._detector.observe(reading.footprint.bytes, self.limits, soft, reading.at)
        for event in events:
            self._log_event(event, reading.at)
        self.on_reading(reading)
        return events

    def _tell_mark(self, reading: Reading) -> None:
        mark, footprint, configured = reading.mark, reading.footprint, self.limits.soft_bytes
        news = self._mark_news.observe(mark, footprint.strain.level, configured)
        if news is News.DOWN:
            log.warning(
                "memory.outside",
                reason=mark.reason,
                level=footprint.strain.level,
                soft=mark.bytes,
                configured=configured,
                bytes=footprint.bytes,
                machine_available=footprint.machine_available,
                cgroup_available=footprint.cgroup_available,
            )
        if news is News.BACK:
            log.info("memory.outside_over", soft=mark.bytes, bytes=footprint.bytes)

    def _log_event(self, event: MemoryEvent, now: float) -> None:
        match event:
            case CeilingEvent():
                log.error("memory.ceiling", bytes=event.footprint_bytes, ceiling=event.ceiling_bytes, limit=event.limit)
            case SoftEvent() if self._soft_told is None or now - self._soft_told >= _SOFT_LOG_S:
                self._soft_told = now
                log.warning("memory.soft", bytes=event.footprint_bytes, soft=event.soft_bytes, pressure=event.pressure)
            case RecoveredEvent():
                self._soft_told = None
                log.info("memory.recovered", bytes=event.footprint_bytes, soft=event.soft_bytes)

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


def _soft(limits: MemoryLimits, reading: Reading | None) -> int:
    """The mark of a reading under the limits of now, which may be others than those it was made with."""
    if reading is None or not reading.mark.cause:
        return limits.soft_bytes
    return min(reading.mark.bytes, limits.soft_bytes)
