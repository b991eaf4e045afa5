"""Signals in every state of the daemon: a stop ends it in time, a second one at once, and SIGHUP ends nothing."""

from __future__ import annotations

import asyncio
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from daemon_process import EXIT_TIMEOUT, MLXD, START_TIMEOUT, Api, Daemon, daemon, sse, text_of
from hanging_daemon import Faults, hanging_daemon

from mlxd.daemon.stop_time import FLUSH_TIMEOUT

reads_proc = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

STATES = ("ready", "load", "step", "close", "tokenize", "reload")
PATIENT = '[server]\ndrain_timeout = "60s"\n[residency]\nunload_timeout = "60s"\n'
DRAIN, UNLOAD = 0.5, 1.0
HASTY = f"[server]\ndrain_timeout = {DRAIN}\n[residency]\nunload_timeout = {UNLOAD}\n"
# Seconds of a busy machine.
SLACK = 4.0


def ignores_hangups(pid: int) -> bool:
    found = re.search(r"^SigIgn:\s*([0-9a-f]+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return bool(int(found[1], 16) >> (signal.SIGHUP - 1) & 1)


def hang_up_until_ready(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Send SIGHUP as long as it is ignored; how often, and the first line of the output."""
    assert process.stdout is not None
    sent, end = 0, time.monotonic() + START_TIMEOUT
    while not select.select([process.stdout], [], [], 0.01)[0]:
        assert time.monotonic() < end
        if ignores_hangups(process.pid):
            process.send_signal(signal.SIGHUP)
            sent += 1
    return sent, process.stdout.readline()


@contextmanager
def starting(folder: Path, **more: str) -> Iterator[subprocess.Popen[str]]:
    """The daemon from its first moment on."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("MLXD_", "LD_PRELOAD"))}
    environ |= {"HOME": str(folder), "MLXD_SERVER__STATE_DIR": str(folder / "state"), "MLXD_SERVER__PORT": "0", **more}
    with subprocess.Popen(
        [MLXD, "serve"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@reads_proc
def test_a_hangup_during_the_start_ends_nothing(tmp_path):
    with starting(tmp_path) as process:
        sent, line = hang_up_until_ready(process)
        assert line.startswith("mlxd ready on ")
        assert sent
        # MLX is being imported now
        process.terminate()
        _, errors = process.communicate(timeout=EXIT_TIMEOUT)
        assert process.returncode == 0
        assert "Traceback" not in errors
        assert "daemon.stopped" in errors


@reads_proc
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 1)])
def test_a_stop_during_the_start_ends_it_at_once(tmp_path, number, code):
    with starting(tmp_path, MLXD_ENGINE__BLAS="off") as process:
        end = time.monotonic() + START_TIMEOUT
        while not ignores_hangups(process.pid):  # from then on it is our own code that starts
            assert time.monotonic() < end
        process.send_signal(number)
        output, errors = process.communicate(timeout=5)
        assert (process.returncode, output) == (code, "")
        assert "Traceback" not in errors


async def begin(state: str, running: Daemon, api: Api, faults: Faults, model: str = "alpha") -> list[Any]:
    """Bring the daemon to hang in that state; whoever waits for an answer from there."""
    if state == "ready":
        return []
    if state == "reload":
        faults.hold("reload")
        running.process.send_signal(signal.SIGHUP)
        await faults.met("reload")
        return []
    if state == "close":
        await api.text(model)
    faults.hold(f"{state}-{model}")
    call = api.call("POST", f"/admin/models/{model}/unload", {}) if state == "close" else api.chat(model)
    waiting = asyncio.create_task(call)
    await faults.met(f"{state}-{model}")
    return [waiting]


@pytest.fixture
def models(models_dir, micro_model):
    return models_dir(dict.fromkeys(("alpha", "beta", "gamma", "delta"), micro_model))


@pytest.mark.parametrize("state", STATES)
async def test_a_second_signal_ends_the_daemon_at_once_whatever_it_is_at(tmp_path, models, state):
    with hanging_daemon(tmp_path / "d", models, PATIENT, exit_code=1) as (running, faults):
        async with Api(running.url) as api, AsyncExitStack() as held:
            waiting = await begin(state, running, api, faults)
            if state in ("ready", "reload"):  # where it would end by itself
                answer = await held.enter_async_context(api.stream("alpha", max_tokens=30_000))
                await answer.content.readline()
            running.process.send_signal(signal.SIGTERM)
            await until_logged(running, "daemon.stopping")
            running.process.send_signal(signal.SIGINT)
            assert running.process.wait(5) == 1
            assert "daemon.exit_now" in running.log.read_text()
            await asyncio.gather(*waiting, return_exceptions=True)


async def until_logged(running: Daemon, event: str) -> None:
    async with asyncio.timeout(20):
        while event not in running.log.read_text():
            assert running.process.poll() is None
            await asyncio.sleep(0.01)


async def test_the_end_of_a_stop_waits_for_nothing_that_hangs(tmp_path, models):
    config = f"{HASTY}max_loading = 4\n"
    with hanging_daemon(tmp_path / "d", models, config) as (running, faults), unread(running) as connection:
        async with Api(running.url) as api:
            answers = []
            for state, model in zip(STATES, ("", "alpha", "beta", "gamma", "delta", ""), strict=True):
                answers += await begin(state, running, api, faults, model)
            started = time.monotonic()
            running.process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(running.process.wait, 30) == 0
            assert time.monotonic() - started < DRAIN + UNLOAD + FLUSH_TIMEOUT + SLACK
            assert connection.fileno() >= 0
            for answer in await asyncio.gather(*answers, return_exceptions=True):
                assert isinstance(answer, Exception) or answer[0] in (200, 503), answer
    assert running.events()[-1] | {"clean": None} == running.events()[-1] | {"event": "daemon.stopped", "clean": None}


@contextmanager
def unread(running: Daemon) -> Iterator[socket.socket]:
    """A client that asks for much and reads nothing."""
    port = int(running.url.rpartition(":")[2])
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", port))
        client.setblocking(False)
        client.send(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 60)
        yield client


async def test_what_runs_feels_no_hangups_and_a_stop_in_the_middle_of_it_ends_in_time(tmp_path, models_dir, tiny_model):
    models = models_dir({"alpha": tiny_model})
    with daemon(tmp_path / "d", models, HASTY) as running:
        async with Api(running.url) as api:
            alone = await api.text("alpha", max_tokens=150)
            async with api.stream("alpha", max_tokens=150) as answer:
                await answer.content.readline()
                storm = asyncio.create_task(hang_up(running, 100))
                assert text_of(await sse(answer)) == alone
                await storm
            await until_logged(running, "daemon.reloaded")
            decoding = asyncio.create_task(api.chat("alpha", max_tokens=30_000))
            await api.until("/admin/requests", lambda answer: any(r["completion_tokens"] for r in answer["data"]))
            prefilling = asyncio.create_task(api.chat("alpha", "word " * 15_000, max_tokens=4))
            await api.until("/admin/requests", lambda answer: any(r["state"] == "prefilling" for r in answer["data"]))
            started = time.monotonic()
            running.process.send_signal(signal.SIGTERM)
            for status, answer in await asyncio.gather(decoding, prefilling):
                assert (status, answer["error"]["code"]) == (503, "shutting_down")
            assert await asyncio.to_thread(running.process.wait, 20) == 0
            assert time.monotonic() - started < DRAIN + UNLOAD + SLACK


STUCK = """
import asyncio, sys, threading
from mlxd.daemon.stop_signals import StopSignals

def overdue(seconds):
    print("overdue", seconds, flush=True)
    threading.Event().wait()  # a log that is stuck

async def main():
    with StopSignals(lambda: None, lambda: 0.3, overdue) as signals:
        if sys.argv[1] == "by itself":
            signals.begin()
        print("stuck", flush=True)
        threading.Event().wait()  # the event loop

asyncio.run(main())
"""


@pytest.mark.parametrize("how", ["by a signal", "by itself"])
def test_a_stop_that_never_ends_is_ended(how):
    command = [sys.executable, "-c", STUCK, how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline() == "stuck\n"
            if how == "by a signal":
                process.terminate()
            process.wait(20)
            # what `communicate` reads is not what `readline` has read ahead
            output, errors = process.stdout.read(), process.stderr.read()
            assert (process.returncode, output, errors) == (1, "overdue 0.3\n", "")
        finally:
            process.kill()


async def hang_up(running: Daemon, times: int) -> None:
    for _ in range(times):
        running.process.send_signal(signal.SIGHUP)
        await asyncio.sleep(0.002)
