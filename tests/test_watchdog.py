"""An engine that does not finish its step is given up; an event loop that does not come round is told of."""

import asyncio
import os
import threading
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from mlxd.daemon.settings import SupervisionSettings
from mlxd.daemon.watchdog import EngineWatchdog
from mlxd.daemon.watchdog_dumps import KEPT, MAX_BYTES, HangDumps
from mlxd.daemon.watchdog_loop import LoopWatchdog


class SteppingEngine:
    """Has been at a step since `since`, or idles."""

    def __init__(self, clock, pid=None):
        self._clock = clock
        self.pid = pid
        self.since = None
        self.losses = []

    def stats(self):
        return SimpleNamespace(heartbeat_age_s=0.0 if self.since is None else self._clock.now - self.since)

    def lose(self, dead):
        self.losses.append(dead)
        self.pid = None


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


class Engines:
    """A watchdog over two engines, one of which a test makes hang."""

    def __init__(self, folder, *, pid=None, patience=5.0, **settings):
        self.clock = Clock()
        self.busy, self.idle = SteppingEngine(self.clock, pid), SteppingEngine(self.clock)
        self.loaded = {"busy": self.busy, "idle": self.idle}
        self.settings = SupervisionSettings(**settings)
        self.dumps = HangDumps(folder)
        self.ended = []
        self.watchdog = EngineWatchdog(
            lambda: self.loaded,
            lambda: self.settings,
            self.dumps,
            self.ended.append,
            clock=self.clock,
            dump_patience=patience,
        )

    async def steps_for(self, seconds):
        """A step begins now; look each second until it is this old."""
        self.busy.since = self.clock.now
        await self.look_for(seconds)

    async def look_for(self, seconds):
        for _ in range(seconds):
            self.clock.now += 1
            await self.watchdog.look()


@pytest.fixture
def engines(tmp_path):
    return Engines(tmp_path)


async def test_an_engine_is_given_up_once_its_step_is_too_old(engines, tmp_path):
    await engines.steps_for(119)
    assert engines.busy.losses == []
    with capture_logs() as logs:
        await engines.look_for(3)
    [dead] = engines.busy.losses
    assert dead.facts == {"reason": "hung", "step_age_s": 120.0}
    assert "busy" in str(dead)
    assert engines.idle.losses == engines.ended == []
    [told] = logs
    [dump] = tmp_path.glob("hang-*.txt")
    assert (told["event"], told["model"], told["dump"]) == ("engine.hung", "busy", str(dump))
    assert "no step is finished by busy" in dump.read_text()


async def test_the_next_engine_of_the_model_is_watched_like_the_first(engines):
    await engines.steps_for(120)
    engines.loaded["busy"] = engines.busy = SteppingEngine(engines.clock)
    await engines.steps_for(119)
    assert engines.busy.losses == []
    await engines.look_for(1)
    assert len(engines.busy.losses) == 1


async def test_an_engine_that_goes_on_during_the_dump_is_spared(engines):
    write = engines.dumps.write

    def write_late(occasion):
        engines.busy.since = engines.clock.now
        return write(occasion)

    engines.dumps.write = write_late
    await engines.steps_for(125)
    assert engines.busy.losses == []


async def test_no_engine_is_given_up_where_none_is_to_be(engines):
    engines.settings = SupervisionSettings(hang_timeout=None)
    await engines.steps_for(1000)
    assert engines.busy.losses == []


async def test_the_time_in_which_the_process_stood_still_is_no_step_s_fault(engines):
    await engines.steps_for(100)
    engines.clock.now += 3600
    await engines.look_for(19)
    assert engines.busy.losses == []
    await engines.look_for(1)
    assert len(engines.busy.losses) == 1


@pytest.mark.parametrize("trouble", ["stuck", "full"])
async def test_a_disk_that_takes_no_dump_keeps_no_engine(tmp_path, trouble):
    engines, lost = Engines(tmp_path, patience=0.01), threading.Event()

    def write(occasion):
        if trouble == "full":
            raise OSError("no space left")
        lost.wait()
        return tmp_path

    engines.dumps.write = write
    try:
        with capture_logs() as logs:
            await engines.steps_for(120)
    finally:
        lost.set()
    assert len(engines.busy.losses) == 1
    assert [told["event"] for told in logs] == ["watchdog.dump_failed", "engine.hung"]


@pytest.mark.parametrize(("exit_on_hang", "pid", "ends"), [(True, None, True), (False, None, False), (True, 7, False)])
async def test_only_for_a_thread_that_stays_the_daemon_ends_if_it_is_to(tmp_path, exit_on_hang, pid, ends):
    engines = Engines(tmp_path, pid=pid, exit_on_hang=exit_on_hang)
    await engines.steps_for(121)
    assert len(engines.busy.losses) == 1
    assert engines.ended == (["busy"] if ends else [])
    assert bool(list(tmp_path.iterdir())) == (pid is None), "the stacks of this process say nothing of another"


def test_a_dump_names_every_thread_and_only_the_newest_files_are_kept(tmp_path):
    dumps = HangDumps(tmp_path)
    paths = [dumps.write(f"number {number}") for number in range(KEPT + 2)]
    assert sorted(tmp_path.iterdir()) == paths[2:]
    text = paths[-1].read_text()
    assert f"number {KEPT + 1}" in text
    assert f"0x{threading.main_thread().ident:016x} MainThread" in text
    assert "in test_a_dump_names_every_thread" in text
    assert paths[-1].stat().st_mode & 0o777 == 0o600


def test_what_was_written_without_python_becomes_a_dump_of_bounded_size(tmp_path):
    dumps = HangDumps(tmp_path)
    own = dumps.open_own()
    try:
        assert dumps.take_own(own, "nothing") is None
        os.write(own, b"x" * (2 * MAX_BYTES))
        path = dumps.take_own(own, "it crashed")
        assert MAX_BYTES < path.stat().st_size < MAX_BYTES + 100_000
        assert "it crashed" in path.read_text()
        assert dumps.take_own(own, "nothing more") is None
    finally:
        os.close(own)


class Deadman:
    """Records how it was last armed."""

    def __init__(self, descriptor):
        self.armed = (None, None)

    def arm(self, dump_after, abort_after):
        self.armed = (dump_after, abort_after)

    def close(self):
        self.armed = (None, None)


class Loop:
    """A watchdog over this test's event loop. Looks that follow each other without an await find it stuck."""

    def __init__(self, folder, **settings):
        self.clock = Clock()
        self.settings = SupervisionSettings(**settings)
        self.ends = []
        self.watchdog = LoopWatchdog(
            lambda: self.settings, HangDumps(folder), self.clock, Deadman, lambda: self.ends.append(self.clock.now)
        )
        self.watchdog._deadman = self.deadman = Deadman(0)

    def look(self, times=1, after=1.0):
        for _ in range(times):
            self.clock.now += after
            self.watchdog.look()


async def test_a_stuck_event_loop_is_told_of_once_for_each_time(tmp_path):
    loop = Loop(tmp_path)
    with capture_logs() as logs:
        loop.look(30)
        assert logs == []
        loop.look(50)
        await asyncio.sleep(0)
        loop.look()
        await asyncio.sleep(0)
        loop.look(60)
    assert [told["event"] for told in logs] == ["watchdog.loop_stuck", "watchdog.loop_back", "watchdog.loop_stuck"]
    assert logs[0]["seconds"] == 30.0
    assert logs[1]["seconds"] == 79.0
    assert sorted(str(path) for path in tmp_path.iterdir()) == [logs[0]["dump"], logs[2]["dump"]]
    assert loop.ends == []


async def test_the_lag_is_how_long_the_event_loop_lets_wait(tmp_path):
    loop = Loop(tmp_path)
    assert loop.watchdog.lag == 0
    loop.look(4)
    assert loop.watchdog.lag == 3
    await asyncio.sleep(0)
    assert loop.watchdog.lag == 3
    loop.look()
    await asyncio.sleep(0)
    assert loop.watchdog.lag == 0


async def test_the_daemon_ends_itself_after_twice_as_long_if_it_is_to(tmp_path):
    loop = Loop(tmp_path, exit_on_hang=True)
    loop.look(60)
    assert loop.ends == []
    assert loop.deadman.armed == (30.0, 60.0)
    loop.look()
    assert len(loop.ends) == 1


async def test_where_the_daemon_is_not_to_end_only_a_dump_is_armed(tmp_path):
    loop = Loop(tmp_path)
    loop.look()
    assert loop.deadman.armed == (30.0, None)
    loop.settings = SupervisionSettings(loop_timeout=None, exit_on_hang=True)
    loop.look(100)
    assert loop.deadman.armed == (None, None)
    assert loop.ends == list(tmp_path.iterdir()) == []


async def test_a_process_that_stood_still_has_not_hung(tmp_path):
    loop = Loop(tmp_path, exit_on_hang=True)
    with capture_logs() as logs:
        loop.look()
        loop.look(after=3600)
        await asyncio.sleep(0)
        loop.look()
    assert [(told["event"], told["seconds"]) for told in logs] == [("watchdog.paused", 3600.0)]
    assert loop.ends == []


async def test_without_a_disk_the_event_loop_is_watched_all_the_same(tmp_path):
    loop = Loop(tmp_path / "gone")
    with capture_logs() as logs, loop.watchdog:
        loop.look(31)
    assert [told["event"] for told in logs if "failed" not in told["event"]] == ["watchdog.loop_stuck"]
    assert sum(told["event"] == "watchdog.dump_failed" for told in logs) == 2
