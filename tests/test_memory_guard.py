"""The guard: callbacks at the limits, headroom for everybody, and nothing that ends the watch."""

from __future__ import annotations

import asyncio
import threading

import pytest
from structlog.testing import capture_logs

from mlxd.memory.crossing import CeilingEvent, RecoveredEvent, SoftEvent
from mlxd.memory.footprint import Footprint, MemoryLimits, Pressure
from mlxd.memory.guard import MemoryGuard, pause
from mlxd.memory.outside import Cause, Strain, StrainLevel
from mlxd.memory.soft_mark import SoftMark

LIMITS = MemoryLimits(ceiling_bytes=1000, soft_bytes=900, limit="memory.ceiling")


class ScriptedProbe:
    """Gives one reading after the other, bytes or a whole footprint; an exception is raised. The last one stays."""

    def __init__(self, *readings, cache=0):
        self._readings = list(readings)
        self._cache = cache
        self.samples = 0

    @property
    def left(self):
        return len(self._readings)

    def sample(self):
        self.samples += 1
        reading = self._readings.pop(0) if len(self._readings) > 1 else self._readings[0]
        if isinstance(reading, Exception):
            raise reading
        if isinstance(reading, Footprint):
            return reading
        return Footprint(reading, 0, self._cache, 10_000, 5_000)

    def metal_limit(self):
        return None

    def wired_limit(self):
        return None


class Clock:
    """Seconds that pass only when told."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Watch:
    """A guard over scripted readings whose watch takes no time; stops after `extra` more polls."""

    def __init__(self, *readings, extra=3):
        self.clock = Clock()
        self.probe = ScriptedProbe(*readings)
        self.guard = MemoryGuard(self.probe, LIMITS, self.clock, wait=self._wait)
        self.stop = asyncio.Event()
        self.seen = []
        self.intervals = set()
        self._extra = extra

    async def run(self, **callbacks):
        handlers = {name: callbacks.get(name, self._record) for name in ("on_soft", "on_ceiling", "on_recovered")}
        await self.guard.watch(0.5, **handlers, stop=self.stop)

    async def _record(self, event):
        self.seen.append(event)

    async def _wait(self, stop, seconds):
        self.intervals.add(seconds)
        self.clock.now += seconds
        for _ in range(5):
            await asyncio.sleep(0)
        if self.probe.left == 1:
            self._extra -= 1
        if self._extra == 0:
            stop.set()


async def test_the_watch_calls_back_with_what_happened():
    watch = Watch(100, 950, 1200, 1200, 100)
    await watch.run()
    assert [type(event) for event in watch.seen] == [SoftEvent, CeilingEvent, RecoveredEvent]
    assert watch.seen[1] == CeilingEvent(1200, 1000, "memory.ceiling")
    assert watch.intervals == {0.5}
    assert watch.guard.latest.footprint.bytes == 100


async def test_crossings_are_logged_with_numbers():
    watch = Watch(1200, 100)
    with capture_logs() as logs:
        await watch.run()
    assert [entry["event"] for entry in logs] == ["memory.ceiling", "memory.soft", "memory.recovered"]
    assert (logs[0]["bytes"], logs[0]["ceiling"]) == (1200, 1000)


async def test_a_failing_probe_does_not_end_the_watch():
    watch = Watch(OSError("gone"), RuntimeError("odd"), 1200, OSError("gone"), 100)
    with capture_logs() as logs:
        await watch.run()
    assert [type(event) for event in watch.seen] == [CeilingEvent, SoftEvent, RecoveredEvent]
    failures = [entry for entry in logs if entry["event"] == "memory.probe_failed"]
    assert [entry["failures"] for entry in failures] == [1, 1]


async def test_a_probe_that_keeps_failing_does_not_flood_the_log():
    watch = Watch(*[OSError("gone")] * 100, 100)
    with capture_logs() as logs:
        await watch.run()
    assert len(logs) == 1


async def test_a_failing_callback_is_logged_and_the_next_event_is_delivered():
    watch = Watch(1200, 100, 1300, 100)
    calls = []

    async def fail(event):
        calls.append(event.footprint_bytes)
        raise RuntimeError("cannot abort")

    with capture_logs() as logs:
        await watch.run(on_ceiling=fail)
    assert calls == [1200, 1300]
    assert [e["callback"] for e in logs if e["event"] == "memory.callback_failed"] == ["on_ceiling"] * 2


async def test_an_eviction_that_hangs_does_not_hold_up_an_abort_and_ends_with_the_watch():
    watch = Watch(950, 1200, 1200)
    ended = []

    async def hang(event):
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(event)

    await watch.run(on_soft=hang)
    assert [type(event) for event in watch.seen] == [CeilingEvent]
    assert len(ended) == 1


async def test_of_the_events_that_wait_for_a_callback_the_newest_is_delivered():
    watch = Watch(1200, 100, 1300, 100, 1400, 100, 100, 100)
    release = asyncio.Event()
    calls = []

    async def slow(event):
        calls.append(event.footprint_bytes)
        if watch.probe.left > 3:
            await release.wait()

    async def let_go(event):
        if watch.probe.left <= 3:
            release.set()

    await watch.run(on_ceiling=slow, on_recovered=let_go)
    assert calls == [1200, 1400]


async def test_cancelling_the_watch_ends_it_and_its_callbacks():
    watch = Watch(1200, extra=10**9)
    started, ended = asyncio.Event(), []

    async def hang(event):
        try:
            started.set()
            await asyncio.Event().wait()
        finally:
            ended.append(event)

    task = asyncio.create_task(watch.run(on_ceiling=hang))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(ended) == 1
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_stop_ends_the_real_pause_at_once():
    stop = asyncio.Event()
    waiting = asyncio.create_task(pause(stop, 3600))
    await asyncio.sleep(0)
    stop.set()
    await asyncio.wait_for(waiting, 5)
    await pause(asyncio.Event(), 0.001)


async def test_a_watch_that_is_stopped_before_it_starts_reads_nothing():
    watch = Watch(1200)
    watch.stop.set()
    await watch.run()
    assert watch.probe.samples == 0


def test_headroom_counts_the_reclaimable_cache_as_free_and_may_be_negative():
    assert MemoryGuard(ScriptedProbe(700, cache=50), LIMITS).headroom() == 900 - 650
    assert MemoryGuard(ScriptedProbe(1700, cache=50), LIMITS).headroom() == 900 - 1650
    assert MemoryGuard(ScriptedProbe(700, cache=5000), LIMITS).headroom() == 900


def test_headroom_measures_again_only_when_the_reading_is_old():
    clock, probe = Clock(), ScriptedProbe(100, 200)
    guard = MemoryGuard(probe, LIMITS, clock)
    guard.sample()
    clock.now += 0.4
    assert (guard.headroom(max_age=0.5), probe.samples) == (800, 1)
    clock.now += 0.2
    assert (guard.headroom(max_age=0.5), probe.samples) == (700, 2)
    assert guard.latest.at == clock.now


def test_with_a_failing_probe_the_last_reading_has_to_do():
    clock = Clock()
    guard = MemoryGuard(ScriptedProbe(100, OSError("gone")), LIMITS, clock)
    guard.sample()
    clock.now += 9
    assert guard.headroom() == 800
    with pytest.raises(OSError, match="gone"):
        guard.sample()
    with pytest.raises(OSError, match="gone"):
        MemoryGuard(ScriptedProbe(OSError("gone")), LIMITS).headroom()


def test_a_reading_is_assessed_against_the_limits_of_now():
    guard = MemoryGuard(ScriptedProbe(950), LIMITS)
    assert guard.latest is None
    assert guard.sample().pressure is Pressure.SOFT
    guard.limits = MemoryLimits(2000, 1800, "memory.ceiling")
    assert guard.sample().pressure is Pressure.OK
    assert guard.latest.pressure is Pressure.OK


def test_headroom_is_the_same_from_another_thread():
    guard = MemoryGuard(ScriptedProbe(100), LIMITS)
    guard.sample()
    found = []
    thread = threading.Thread(target=lambda: found.append(guard.headroom(max_age=0)))
    thread.start()
    thread.join()
    assert found == [800]


async def test_whoever_watches_with_it_is_told_each_measurement():
    watch = Watch(100, RuntimeError("no such file"), 950)
    told = []
    watch.guard.on_reading = lambda reading: told.append((reading.footprint.bytes, reading.pressure))
    await watch.run()
    assert told[:2] == [(100, Pressure.OK), (950, Pressure.SOFT)]
    assert set(told[2:]) == {(950, Pressure.SOFT)}


async def test_a_new_interval_counts_at_once_and_from_then_on():
    pauses: asyncio.Queue[float] = asyncio.Queue()

    async def wait(stop, seconds):
        pauses.put_nowait(seconds)
        await stop.wait()

    async def nothing(_):
        pass

    guard = MemoryGuard(ScriptedProbe(10), LIMITS, wait=wait)
    guard.retime(9.0)  # before anybody watches it changes nothing
    stop = asyncio.Event()
    watching = asyncio.create_task(guard.watch(3600.0, nothing, nothing, nothing, stop))
    assert await pauses.get() == 3600.0
    measured = guard.latest
    guard.retime(0.5)
    assert await pauses.get() == 0.5
    assert guard.latest is not measured
    stop.set()
    await watching


async def test_a_pause_that_times_out_by_itself_ends_the_watch_with_its_error():
    async def wait(stop, seconds):
        raise TimeoutError("of its own")

    async def nothing(_):
        pass

    guard = MemoryGuard(ScriptedProbe(10), LIMITS, wait=wait)
    with pytest.raises(TimeoutError, match="of its own"):
        await guard.watch(1.0, nothing, nothing, nothing, asyncio.Event())


def outside(used, *, available=5_000, level=StrainLevel.NONE, cache=0):
    """A footprint on a machine of 1600 bytes, of which 100 are left to others."""
    return Footprint(used, 0, cache, 1600, available, strain=Strain(level))


def guard_over(*readings, clock=None):
    probe = ScriptedProbe(*readings)
    return MemoryGuard(probe, LIMITS, clock or Clock(), soft_mark=SoftMark(machine_counts=True))


def test_before_anything_is_measured_the_mark_is_the_configured_limit():
    guard = guard_over(outside(300, available=150))
    assert guard.soft_now == 900
    assert guard.limits_now == LIMITS


def test_headroom_and_pressure_go_by_the_mark_and_the_ceiling_stays():
    guard = guard_over(outside(300, available=150, cache=40), outside(400, available=50), outside(1001, available=0))
    assert guard.sample().pressure is Pressure.OK
    assert (guard.soft_now, guard.headroom()) == (342, 342 - 260)
    assert guard.limits_now == MemoryLimits(1000, 342, "memory.ceiling")
    reading = guard.sample()
    assert (reading.pressure, reading.mark.bytes, reading.mark.cause) == (Pressure.SOFT, 342, Cause.MACHINE)
    assert guard.sample().pressure is Pressure.CEILING
    assert guard.limits == LIMITS


def test_new_limits_hold_at_once_for_whoever_asks_for_the_mark():
    guard = guard_over(outside(300, available=150))
    guard.limits = MemoryLimits(2000, 1800, "memory.ceiling")
    assert guard.soft_now == 1800
    guard.sample()
    assert guard.soft_now == 342 // 18 * 18
    guard.limits = MemoryLimits(1000, 200, "memory.ceiling")
    assert guard.soft_now == 200


async def test_others_that_take_memory_make_us_shed_and_no_request_is_aborted():
    watch = Watch(outside(800), outside(800, available=50), outside(600, available=250), extra=30)
    with capture_logs() as logs:
        await watch.run()
    assert watch.seen == [SoftEvent(800, 747, "memory.ceiling", Pressure.SOFT), RecoveredEvent(600, 747)]
    assert [(entry["event"], entry["log_level"]) for entry in logs] == [
        ("memory.outside", "warning"),
        ("memory.soft", "warning"),
        ("memory.recovered", "info"),
    ]
    assert logs[0] == {
        "event": "memory.outside", "log_level": "warning", "reason": "machine available", "level": StrainLevel.NONE,
        "soft": 747, "configured": 900, "bytes": 800, "machine_available": 50, "cgroup_available": None,
    }  # fmt: skip


async def test_the_end_of_pressure_from_outside_is_logged_once():
    watch = Watch(outside(500, level=StrainLevel.WARN), outside(500), extra=30)
    with capture_logs() as logs:
        await watch.run()
    assert [entry["event"] for entry in logs] == ["memory.outside", "memory.outside_over"]
    assert logs[0]["reason"] == "memory pressure"
    assert logs[1]["soft"] == 900
    assert watch.guard.soft_now == 900


async def test_a_crossing_that_lasts_is_acted_on_every_few_seconds_and_logged_once_a_minute():
    watch = Watch(950, extra=125)
    with capture_logs() as logs:
        await watch.run()
    assert len(watch.seen) == 13
    assert [entry["event"] for entry in logs] == ["memory.soft"] * 2


def test_many_threads_measure_at_once_and_the_mark_stays_whole():
    probe = ScriptedProbe(*(outside(300, available=100 + turn % 7) for turn in range(2000)))
    guard = MemoryGuard(probe, LIMITS, Clock(), soft_mark=SoftMark(machine_counts=True))
    assert guard.sample().mark.bytes == 297
    found = []

    def measure():
        found.extend(guard.sample().mark.bytes for _ in range(100))

    threads = [threading.Thread(target=measure) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [297] * 800
