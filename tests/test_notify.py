"""What the daemon tells systemd: when it serves, reloads and stops, and that its event loop goes round."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
import uuid
from pathlib import Path

import pytest
from daemon_process import Api, daemon
from notify_socket import NotifySocket
from structlog.testing import capture_logs

from mlxd.daemon.notify import Notifier
from mlxd.daemon.settings import Settings
from mlxd.daemon.stop_time import stop_seconds

CONFIG = '[server]\ndrain_timeout = "40s"\n'


@pytest.fixture
def manager(tmp_path):
    with NotifySocket(tmp_path / "notify") as listening:
        yield listening


@pytest.fixture
def models(tmp_path):
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


def told(manager, **variables):
    return {"NOTIFY_SOCKET": manager.address} | variables


async def test_the_manager_hears_of_the_whole_life_of_a_daemon(tmp_path, models, manager):
    with daemon(tmp_path / "d", models, CONFIG, environ=told(manager)) as running:
        assert manager.next() == {"READY": "1", "STATUS": f"serving on {running.url}"}
        running.process.send_signal(signal.SIGHUP)
        begun, done = manager.next(), manager.next()
        assert begun.pop("RELOADING") == "1"
        assert 0 < int(begun.pop("MONOTONIC_USEC")) <= time.monotonic_ns() // 1000
        assert begun == {"STATUS": "reading the configuration again"}
        assert done == {"READY": "1", "STATUS": f"serving on {running.url}"}
        async with Api(running.url) as api:
            (tmp_path / "d" / "mlxd.toml").write_text('[server]\ndrain_timeout = "100s"\n')
            assert (await api.call("POST", "/admin/reload", {"dry_run": True}))[0] == 200
            assert (await api.call("POST", "/admin/reload"))[0] == 200
            (tmp_path / "d" / "mlxd.toml").write_text("prot = 1")
            assert (await api.call("POST", "/admin/reload"))[0] == 400
        for _ in ("the good one", "the invalid one"):
            assert "RELOADING" in manager.next()
            assert manager.next() == done
        assert running.stop() == 0
        last = manager.next()
        # as long as the reloaded configuration takes, not as that of the start
        longer = stop_seconds(Settings()) - Settings().server.drain_timeout + 100
        assert int(last.pop("EXTEND_TIMEOUT_USEC")) == longer * 1_000_000
        assert last == {"STOPPING": "1", "STATUS": "stopping: what runs is finished first"}
        with pytest.raises(TimeoutError):
            manager.next(0.01)


@pytest.mark.virtual_time
async def test_signs_of_life_come_twice_as_often_as_asked_for(manager):
    async with Notifier(manager.address, 10.0).watched():
        await asyncio.sleep(21)
    for _ in range(5):
        assert manager.next() == {"WATCHDOG": "1"}
    with pytest.raises(TimeoutError):
        manager.next(0.01)


def test_signs_of_life_end_where_the_daemon_stands_still(tmp_path, models, manager):
    with daemon(tmp_path / "d", models, environ=told(manager, WATCHDOG_USEC="200000")) as running:
        manager.until("READY")
        for _ in range(3):
            assert manager.next() == {"WATCHDOG": "1"}
        running.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, running.process.pid, os.WSTOPPED | os.WNOWAIT)
        with contextlib.suppress(TimeoutError):
            while True:
                manager.next(0.01)  # what was sent before
        with pytest.raises(TimeoutError):
            manager.next(0.4)
        running.process.send_signal(signal.SIGCONT)
        assert manager.next() == {"WATCHDOG": "1"}


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"WATCHDOG_USEC": "0"},
        {"WATCHDOG_USEC": "soon"},
        {"WATCHDOG_USEC": "-5"},
        {"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"},
    ],
)
def test_a_watchdog_that_asks_nothing_of_this_process_is_not_fed(asked, manager):
    asyncio.run(serve_for_a_moment(Notifier.from_environ(told(manager, **asked), os.getpid())))
    with pytest.raises(TimeoutError):
        manager.next(0.01)


def test_the_watchdog_is_fed_where_the_process_is_named(manager):
    environ = told(manager, WATCHDOG_USEC="60000000", WATCHDOG_PID=str(os.getpid()))
    asyncio.run(serve_for_a_moment(Notifier.from_environ(environ, os.getpid())))
    assert manager.next() == {"WATCHDOG": "1"}


async def serve_for_a_moment(notifier):
    async with notifier.watched():
        await asyncio.sleep(0)


@pytest.mark.skipif(not hasattr(socket, "SO_PASSCRED"), reason="only Linux has abstract sockets")
def test_an_abstract_socket_is_found():
    with NotifySocket(f"@mlxd-{uuid.uuid4()}") as manager:
        Notifier(manager.address, None).ready("here")
        assert manager.next() == {"READY": "1", "STATUS": "here"}


def test_nothing_is_ready_any_more_once_the_daemon_stops(manager):
    notifier = Notifier(manager.address, None, clock=lambda: 7_000)
    with notifier.reloading():
        notifier.stopping(1.5)
    assert manager.next()["MONOTONIC_USEC"] == "7"
    assert manager.next()["EXTEND_TIMEOUT_USEC"] == "1500000"
    with pytest.raises(TimeoutError):
        manager.next(0.01)


def test_without_a_manager_nothing_is_sent(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    notifier = Notifier.from_environ({}, os.getpid())
    notifier.ready("x")
    notifier.stopping(1)
    assert list(Path.cwd().iterdir()) == []


def test_a_manager_that_is_gone_is_logged_once(tmp_path):
    with NotifySocket(tmp_path / "gone") as gone:
        pass
    notifier = Notifier(gone.address, 60.0)
    with capture_logs() as logged:
        notifier.ready("x")
        asyncio.run(serve_for_a_moment(notifier))
        notifier.stopping(1)
    [line] = logged
    assert (line["event"], line["log_level"]) == ("service.notify_failed", "warning")
    assert line["socket"] == gone.address
    assert "ConnectionRefusedError" in line["error"]


def test_a_full_socket_does_not_hold_the_event_loop_up(manager):
    notifier = Notifier(manager.address, 0.002)

    async def feed():
        async with asyncio.timeout(10), notifier.watched():
            for _ in range(200):
                await asyncio.sleep(0.002)

    asyncio.run(feed())
    queued = 0
    with contextlib.suppress(TimeoutError):
        while manager.next(0.01) == {"WATCHDOG": "1"}:
            queued += 1
    assert 0 < queued < 200
