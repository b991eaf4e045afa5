"""A worker's process: started, listened to, killed and waited for."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO, Any

import msgspec

from mlxd.engines.child_process import ending, module_command, signal_of
from mlxd.engines.worker.link import Link
from mlxd.engines.worker.output import Output

_READ = 1 << 16
# Reads that take all that a kernel holds of what a process has written before it ended.
_LAST_READS = 64
# Seconds that a worker gets to write where each of its threads is.
DUMP = 0.3
# Seconds that a worker may take to end once it has closed its end of the socket.
LEAVING = 2.0
# Seconds after which a process that was killed and is still there, in some call of a driver, is not waited for.
UNKILLABLE = 10.0


@dataclass(frozen=True, slots=True)
class Ending:
    """How a process ended: its exit code, negative for a signal, None if it could not be ended, and the last lines that
    it wrote.
    """

    code: int | None
    output: tuple[str, ...]

    @property
    def exit_code(self) -> int | None:
        """None for a process that did not end by itself."""
        return self.code if self.code is not None and self.code >= 0 else None

    @property
    def signal(self) -> str | None:
        """The name of the signal that ended it."""
        return None if self.code is None else signal_of(self.code)

    @property
    def words(self) -> str:
        """As a part of a sentence."""
        return "was killed and does not end" if self.code is None else ending(self.code)


Command = Callable[[int], Sequence[str]]


def worker_command(fd: int) -> list[str]:
    """The command of a worker whose end of the socket is `fd`."""
    return module_command("mlxd.engines.worker", fd, os.getpid())


class WorkerProcess:
    """Made on the event loop, and on the main thread: Linux ends a worker with the thread that started it.

    `take` is called with each message, `on_end` once, when everything before the end was told. Raises OSError when no
    process can be started.
    """

    def __init__(
        self,
        take: Callable[[Any], None],
        output: Output,
        on_end: Callable[[Ending], None],
        command: Command = worker_command,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._output = output
        self._on_end = on_end
        self.broken: str | None = None
        self._over = False
        self._timers: dict[Callable[[], None], asyncio.TimerHandle] = {}
        own, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as undo:
            undo.enter_context(own)
            self._process = self._start(command(theirs.fileno()), theirs)
            undo.pop_all()
        assert self._process.stderr is not None, "it was asked for"
        self._stderr: IO[bytes] = self._process.stderr
        os.set_blocking(self._stderr.fileno(), False)
        self._loop.add_reader(self._stderr, self._read_output)
        self._link = Link(own, take, self._break)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: msgspec.Struct) -> None:
        """Never waits. Raises ValueError as `frame` does."""
        self._link.send(message)

    def kill(self) -> None:
        """End it now, whatever it is at; a stopped one too."""
        self._process.kill()
        self._later(UNKILLABLE, self._give_up)

    def kill_with_dump(self) -> None:
        """Have it write where its threads are, and end it."""
        self._process.send_signal(signal.SIGUSR1)
        self._later(DUMP, self.kill)

    def _start(self, command: Sequence[str], theirs: socket.socket) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=[theirs.fileno()],
            # What a terminal sends is for the daemon. Not a session: Linux would schedule it as one (sched_autogroup),
            # and beside busy workers the daemon then waited up to a second for a processor.
            process_group=0,
        )
        try:
            threading.Thread(target=self._wait, args=(process,), name=f"worker-{process.pid}", daemon=True).start()
        except RuntimeError as error:  # there are too many threads
            process.kill()
            process.communicate()
            raise OSError(errno.EAGAIN, str(error)) from None
        return process

    def _later(self, seconds: float, do: Callable[[], None]) -> None:
        """Once, unless it has ended by then."""
        if not self._over and do not in self._timers:
            self._timers[do] = self._loop.call_later(seconds, do)

    def _break(self, why: str | None) -> None:
        if why is None:
            self._later(LEAVING, self.kill)
        else:
            self.broken = why
            self.kill()

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
        with contextlib.suppress(RuntimeError):  # the event loop is gone
            self._loop.call_soon_threadsafe(self._ended, code)

    def _give_up(self) -> None:
        self._ended(None)

    def _ended(self, code: int | None) -> None:
        if self._over:
            return
        self._over = True
        for timer in self._timers.values():
            timer.cancel()
        self._link.close()
        # whoever has a copy of the other end might go on for ever
        for _ in range(_LAST_READS):
            if not self._read_output():
                break
        self._output.close()
        self._loop.remove_reader(self._stderr)
        self._stderr.close()
        self._on_end(Ending(code, self._output.kept))

    def _read_output(self) -> bool:
        """Take what was written; False when there is no more for now, or for good."""
        try:
            data = os.read(self._stderr.fileno(), _READ)
        except BlockingIOError:
            return False
        if not data:
            self._loop.remove_reader(self._stderr)
            return False
        self._output.feed(data)
        return True
