"""Worker processes as systems and hostile programs make them: floods, no end, no thread, no descriptor, no newline."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import psutil
import pytest
from worker_harness import children, is_gone, until

from mlxd.engines.worker import process as process_module
from mlxd.engines.worker.frames import Frames
from mlxd.engines.worker.output import KEPT_LINES, Output
from mlxd.engines.worker.process import Ending, WorkerProcess, worker_command
from mlxd.engines.worker.to_worker import Drop, ToWorker


class Started:
    """A process that runs a Python program, with all that was told of it."""

    def __init__(self, program: str, *more: str) -> None:
        self.lines: list[str] = []
        self.left_out = 0
        self.endings: list[Ending] = []
        self.messages: list[Any] = []
        output = Output(self.lines.append, self._leave_out)
        command = [sys.executable, "-Ic", f"import os, signal, sys, time\n{program}"]
        self.process = WorkerProcess(
            self.messages.append, output, self.endings.append, lambda fd: [*command, str(fd), *more]
        )

    def _leave_out(self, count: int) -> None:
        self.left_out += count

    async def ending(self, within: float = 10.0) -> Ending:
        await until(lambda: bool(self.endings), within)
        (ending,) = self.endings
        return ending


async def test_how_it_ended_and_what_it_said_last_are_known():
    it = Started("print('first', file=sys.stderr); os.write(2, b'no newline'); sys.exit(7)")
    ending = await it.ending()
    assert (ending.exit_code, ending.signal, ending.words) == (7, None, "ended with exit code 7")
    assert ending.output == ("first", "no newline") == tuple(it.lines)


async def test_a_signal_is_told_by_its_name():
    ending = await Started("os.kill(os.getpid(), signal.SIGSEGV)").ending()
    assert (ending.exit_code, ending.signal, ending.words) == (None, "SIGSEGV", "was killed by SIGSEGV")


async def test_a_flood_takes_neither_memory_nor_the_event_loop():
    own = psutil.Process()
    before = own.memory_info().rss
    it = Started("for _ in range(800): os.write(2, b'x\\n' * 32768)")
    longest, last = 0.0, time.thread_time()
    while not it.endings:
        await asyncio.sleep(0)
        longest, last = max(longest, time.thread_time() - last), time.thread_time()
    ending = await it.ending(60)
    assert len(it.lines) + it.left_out == 800 * 32768
    assert len(ending.output) == 2 * KEPT_LINES
    assert own.memory_info().rss - before < 50_000_000
    assert longest < 0.1


async def test_a_child_that_keeps_its_standard_error_and_prints_on_does_not_keep_it_alive():
    program = """
import subprocess
child = subprocess.Popen([sys.executable, '-Ic', "import os\\nwhile True: os.write(2, b'still here' * 1000)"])
os.write(2, b'%d\\n' % child.pid)
time.sleep(0.5)
os._exit(5)
"""
    it = Started(program)
    await until(lambda: bool(it.lines))
    child = psutil.Process(int(it.lines[0]))
    ending = await it.ending()
    assert ending.exit_code == 5
    await until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


async def test_one_that_closes_its_end_of_the_socket_and_stays_is_killed(monkeypatch):
    monkeypatch.setattr(process_module, "LEAVING", 0.2)
    it = Started("os.close(int(sys.argv[1])); time.sleep(60)")
    assert (await it.ending()).signal == "SIGKILL"


async def test_one_that_closes_its_end_and_leaves_is_not_killed():
    it = Started("os.close(int(sys.argv[1])); time.sleep(0.2); sys.exit(3)")
    assert (await it.ending()).exit_code == 3


async def test_one_that_cannot_be_killed_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(process_module, "UNKILLABLE", 0.1)
    it = Started("time.sleep(60)")
    pid = it.process.pid
    monkeypatch.setattr(it.process._process, "kill", lambda: None)
    it.process.kill()
    ending = await it.ending()
    assert (ending.code, ending.signal, ending.words) == (None, None, "was killed and does not end")
    os.kill(pid, signal.SIGKILL)
    await until(lambda: is_gone(pid))
    await asyncio.sleep(0)
    assert len(it.endings) == 1


async def test_it_can_be_killed_again_and_again_before_and_after_its_end():
    it = Started("time.sleep(60)")
    for _ in range(2):
        it.process.kill_with_dump()
        it.process.kill()
    assert (await it.ending()).code is not None
    it.process.kill_with_dump()
    it.process.kill()
    it.process.send(Drop(1))
    assert len(it.endings) == 1


async def test_without_another_thread_there_is_no_process_either(monkeypatch):
    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    before = psutil.Process().num_fds()
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    with pytest.raises(OSError, match="can't start new thread"):
        Started("time.sleep(60)")
    assert not children()
    assert psutil.Process().num_fds() == before


@pytest.mark.parametrize("spare", [0, 1, 2, 4])
async def test_without_descriptors_it_does_not_start_and_leaves_nothing(spare):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = psutil.Process().num_fds()
    with socket.socket() as lowest:
        first_free = lowest.fileno()
    resource.setrlimit(resource.RLIMIT_NOFILE, (first_free + spare, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            Started("time.sleep(60)")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert psutil.Process().num_fds() == before
    assert not children()
    it = Started("sys.exit(0)")
    assert (await it.ending()).exit_code == 0


async def test_messages_reach_it_as_they_were_sent():
    program = "import socket; os.write(2, socket.socket(fileno=int(sys.argv[1])).recv(1000).hex().encode())"
    it = Started(program)
    it.process.send(Drop(77))
    await it.ending()
    assert Frames(ToWorker).feed(bytes.fromhex("".join(it.lines))) == [Drop(77)]


def command_in(*flags: str) -> Sequence[str]:
    """The command of a worker, made by a Python with these flags."""
    program = "from mlxd.engines.worker.process import worker_command; print(*worker_command(9))"
    found = subprocess.run([sys.executable, *flags, "-c", program], capture_output=True, text=True, check=True)
    return found.stdout.split()


def test_a_worker_finds_its_modules_where_the_daemon_does():
    assert command_in("-I")[1] == "-I"
    assert command_in()[1] == "-P"
    assert worker_command(3)[-2:] == ["3", str(os.getpid())]
