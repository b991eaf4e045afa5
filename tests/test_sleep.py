"""The machine sleeps once steps have ended, in time whatever happens; work goes on when it has woken."""

from __future__ import annotations

import asyncio
import ctypes
import re
import sys
import threading
from contextlib import asynccontextmanager
from functools import partial

import pytest
from crumbs import asking
from reload_daemon import settings_for
from structlog.testing import capture_logs

from mlxd.daemon.app import Daemon
from mlxd.daemon.sleep import SleepWatch
from mlxd.daemon.sleep_darwin import (
    CAN_SLEEP,
    POWERED_ON,
    WILL_NOT_SLEEP,
    WILL_SLEEP,
    DarwinPower,
    Frameworks,
    system_power,
)
from mlxd.engines.crowd import Crowd
from mlxd.memory.probe import SystemProbe

PATIENCE = 20.0


class Machine:
    """A machine that a test puts to sleep. `allowed` is set when it may."""

    def __init__(self):
        self.allowed = threading.Event()
        self.followed = asyncio.Event()
        self.refuses = False
        self.answers = 0

    def start(self, on_sleep, on_wake):
        if self.refuses:
            raise OSError("not told")
        self._on_sleep, self.wake = on_sleep, on_wake
        self.followed.set()

    def stop(self):
        self.followed.clear()

    def sleep(self):
        """It is about to sleep, as its own thread says."""
        self.allowed.clear()
        threading.Thread(target=self._on_sleep, args=(self._allow,)).start()

    def _allow(self):
        self.answers += 1
        self.allowed.set()

    async def may_sleep(self):
        assert await asyncio.to_thread(self.allowed.wait, PATIENCE)


class Clocks:
    """The monotonic clock stands still while the machine sleeps, the wall clock does not."""

    def __init__(self):
        self.monotonic, self.wall = 100.0, 1000.0

    def asleep(self, seconds):
        self.wall += seconds

    def awake(self, seconds):
        self.monotonic += seconds
        self.wall += seconds


class Steps(Crowd):
    """Those of the lanes alone."""

    async def hold_steps(self, seconds):
        return await asyncio.to_thread(self.close, seconds)

    def free_steps(self):
        self.open()


class House:
    def __init__(self, **options):
        self.machine, self.crowd, self.clocks = Machine(), Steps(), Clocks()
        self.measured = asyncio.Event()
        self.watch = SleepWatch(
            self.machine,
            self.crowd,
            self.measured.set,
            clock=lambda: self.clocks.monotonic,
            wall_clock=lambda: self.clocks.wall,
            **options,
        )


@asynccontextmanager
async def watched(**options):
    house = House(**options)
    task = asyncio.create_task(house.watch.run())
    await house.machine.followed.wait()
    try:
        yield house
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def woken(house):
    async with asyncio.timeout(PATIENCE):
        await house.watch.awake()


class Step:
    """A step of an engine on a thread of its own. It `began` once it was let in, and ends when it `may_end`."""

    def __init__(self, crowd):
        self.began, self.may_end = threading.Event(), threading.Event()
        self._crowd = crowd
        self.thread = threading.Thread(target=self._main, daemon=True)
        self.thread.start()

    def _main(self):
        with self._crowd.entered():
            self.began.set()
            assert self.may_end.wait(PATIENCE)

    def end(self):
        self.may_end.set()
        self.thread.join(PATIENCE)


async def test_the_machine_sleeps_when_the_step_has_ended_and_no_other_begins():
    async with watched() as house:
        step = Step(house.crowd)
        assert step.began.wait(PATIENCE)
        house.machine.sleep()
        while await is_awake(house):
            pass
        assert not house.machine.allowed.is_set()
        step.end()
        await house.machine.may_sleep()
        late = Step(house.crowd)
        assert not late.began.wait(0.02)
        house.machine.wake()
        await woken(house)
        assert late.began.wait(PATIENCE)
        late.end()


async def is_awake(house):
    waits = asyncio.create_task(house.watch.awake())
    for _ in range(3):
        await asyncio.sleep(0)
    return waits.done() or not waits.cancel()


async def test_what_wants_to_load_or_to_compute_waits_for_the_morning():
    async with watched() as house:
        await woken(house)
        house.machine.sleep()
        await house.machine.may_sleep()
        assert not await is_awake(house)
        house.machine.wake()
        await woken(house)


async def test_the_log_says_how_long_it_slept_and_memory_is_measured_again():
    with capture_logs() as logs:
        async with watched() as house:
            house.machine.sleep()
            await house.machine.may_sleep()
            house.clocks.awake(2.0)
            house.clocks.asleep(3600.0)
            house.machine.wake()
            await asyncio.wait_for(house.measured.wait(), PATIENCE)
            await woken(house)
    assert [line["event"] for line in logs] == ["system.sleeping", "system.woke"]
    assert logs[0]["steps_ended"] is True
    assert logs[1]["slept_s"] == 3600.0


async def test_a_step_that_does_not_end_does_not_keep_the_machine_awake():
    with capture_logs() as logs:
        async with watched(patience=0.02) as house:
            step = Step(house.crowd)
            assert step.began.wait(PATIENCE)
            house.machine.sleep()
            await house.machine.may_sleep()
            step.end()
    assert logs[0]["steps_ended"] is False


async def test_an_event_loop_that_stands_still_does_not_keep_the_machine_awake():
    async with watched(patience=0.0) as house:
        house.machine.sleep()
        assert house.machine.allowed.wait(PATIENCE)  # nothing of the loop runs meanwhile
        assert house.machine.answers == 1
        house.machine.wake()
        await asyncio.wait_for(house.measured.wait(), PATIENCE)
    assert house.machine.answers == 1


async def test_work_goes_on_when_nobody_says_that_the_machine_has_woken():
    async with watched(longest=0.02) as house:
        house.machine.sleep()
        await house.machine.may_sleep()
        await asyncio.wait_for(house.measured.wait(), PATIENCE)
        await woken(house)
        step = Step(house.crowd)
        assert step.began.wait(PATIENCE)
        step.end()


async def test_two_sleeps_in_a_row_are_both_let_through():
    async with watched() as house:
        for _ in range(2):
            house.machine.sleep()
            await house.machine.may_sleep()
        house.machine.wake()
        await woken(house)
        assert house.machine.answers == 2


async def test_to_be_woken_without_a_sleep_is_nothing():
    with capture_logs() as logs:
        async with watched() as house:
            house.machine.wake()
            house.machine.wake()
            house.machine.sleep()
            await house.machine.may_sleep()
    assert [line["event"] for line in logs] == ["system.sleeping"]


async def test_a_stop_during_the_sleep_lets_everything_go_on():
    async with watched() as house:
        house.machine.sleep()
        await house.machine.may_sleep()
    assert not house.machine.followed.is_set()
    await woken(house)
    step = Step(house.crowd)
    assert step.began.wait(PATIENCE)
    step.end()


async def test_a_system_that_does_not_tell_is_told_of_once_and_nothing_is_held():
    house = House()
    house.machine.refuses = True
    with capture_logs() as logs:
        await house.watch.run()
    assert [line["event"] for line in logs] == ["system.sleep_unwatched"]
    await woken(house)


async def test_without_anything_that_tells_nothing_runs():
    await SleepWatch(None, Steps(), lambda: None).run()


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS tells")
def test_only_macos_tells():
    assert system_power() is None


async def test_a_daemon_begins_no_load_and_no_request_until_the_machine_has_woken(models_dir, micro_model):
    settings = settings_for(models_dir({"m": micro_model}))
    machine = Machine()
    daemon = Daemon(settings, SystemProbe(), hf_cache=None, power=machine)
    daemon.start()
    try:
        await machine.followed.wait()
        machine.sleep()
        await machine.may_sleep()
        load = asyncio.create_task(daemon.registry.load("m"))
        request = asyncio.create_task(works(daemon))
        for _ in range(50):
            await asyncio.sleep(0)
        assert daemon.registry.model("m").state == "loading"
        assert not daemon.registry.model("m").load.progress.bytes_done
        assert not request.done()
        machine.wake()
        async with asyncio.timeout(PATIENCE):
            await load
            await request
    finally:
        assert await daemon.close()


async def works(daemon):
    async with daemon.services.at_work("m", [asking(1)]):
        pass


# ---- macOS's own functions, as far as they can be tried elsewhere


class Mac:
    """IOKit and Core Foundation in one: a run loop that ends when it is stopped, and a record of calls."""

    def __init__(self, root=7):
        self.root = root
        self.calls = []
        self._stopped = threading.Event()

    def register_for_system_power(self, refcon, port, callback, notifier):
        assert refcon is None
        port._obj.value, notifier._obj.value = 0x100, 9
        self.callback = callback
        return self.root

    def notification_port_get_run_loop_source(self, port):
        return port.value + 1

    def run_loop_get_current(self):
        return 0x300

    def run_loop_add_source(self, loop, source, mode):
        self.calls.append(("add", loop, source, mode.value))

    def run_loop_run(self):
        assert self._stopped.wait(PATIENCE)

    def run_loop_stop(self, loop):
        self.calls.append(("stop", loop))
        self._stopped.set()

    def deregister_for_system_power(self, notifier):
        self.calls.append(("deregister", notifier._obj.value))

    def service_close(self, root):
        self.calls.append(("close", root))

    def notification_port_destroy(self, port):
        self.calls.append(("destroy", port.value))

    def allow_power_change(self, root, notification):
        self.calls.append(("allow", root, notification))

    def tell(self, kind, notification):
        """As IOKit calls back: C, on the thread of the run loop."""
        self.callback(None, 1, kind, notification)


class Functions:
    """The functions of a library by their names in C, each of which takes what ctypes is told of it."""

    def __init__(self, mac):
        self._mac = mac
        self.declared = {}

    def __getattr__(self, name):
        if name not in self.declared:
            method = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name[2:]).lower()
            self.declared[name] = partial(getattr(self._mac, method))
        return self.declared[name]


def mac_power(mac):
    functions = Functions(mac)
    return DarwinPower(lambda: Frameworks(functions, functions, ctypes.c_void_p(0x200))), functions


def test_macos_is_listened_to_on_a_run_loop_until_the_end():
    mac = Mac()
    power, functions = mac_power(mac)
    power.start(lambda allow: None, lambda: None)
    power.stop()
    assert mac.calls == [
        ("add", 0x300, 0x101, 0x200),
        ("deregister", 9),
        ("stop", 0x300),
        ("close", 7),
        ("destroy", 0x100),
    ]
    assert not [thread for thread in threading.enumerate() if thread.name == "system-power"]
    called = {name for name, function in functions.declared.items() if hasattr(function, "argtypes")}
    assert called == functions.declared.keys()


def test_macos_is_answered_when_the_sleep_may_begin_and_at_once_when_it_only_asks():
    mac, permissions, wakes = Mac(), [], []
    power, _ = mac_power(mac)
    power.start(permissions.append, lambda: wakes.append(1))
    mac.tell(CAN_SLEEP, 40)
    assert mac.calls[-1] == ("allow", 7, 40)
    mac.tell(WILL_SLEEP, 41)
    mac.tell(WILL_SLEEP, 0)
    assert mac.calls[-1] == ("allow", 7, 40)
    for allow in permissions:
        allow()
    assert mac.calls[-2:] == [("allow", 7, 41), ("allow", 7, 0)]
    assert wakes == []
    mac.tell(POWERED_ON, None)
    mac.tell(WILL_NOT_SLEEP, None)
    mac.tell(0xE0000320, None)  # it will power on, and the rest of the machine is not there yet
    assert len(wakes) == 2
    power.stop()


def test_macos_that_does_not_take_the_registration_is_an_error():
    power, _ = mac_power(Mac(root=0))
    with pytest.raises(OSError, match="does not tell"):
        power.start(lambda allow: None, lambda: None)


@pytest.mark.skipif(sys.platform == "darwin", reason="they are there")
def test_without_macos_there_are_no_libraries():
    with pytest.raises(OSError, match="IOKit"):
        DarwinPower().start(lambda allow: None, lambda: None)
