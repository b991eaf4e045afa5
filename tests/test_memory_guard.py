"""The guard: callbacks at the limits, headroom for everybody, and nothing that ends the watch."""

from __future__ import annotations

import asyncio
import threading

import pytest
from structlog.testing import capture_logs

from mlxd.memory.crossing import CeilingEvent, RecoveredEvent, SoftEvent
from mlxd.memory.footprint import Footprint, MemoryLimits, Pressure
from mlxd.memory.guard import MemoryGuard, pause

LIMITS = MemoryLimits(ceiling_bytes=1000, soft_bytes=900, limit="memory.ceiling")


class ScriptedProbe:
    """Gives one reading after the other; an exception among them is raised. The last one stays."""

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
