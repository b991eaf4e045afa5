"""A worker's process: started, listened to, killed and waited for."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO, Any

import msgspec

from mlxd.engines.worker.link import Link

# Lines of a worker's standard error that are kept at most, of the begin and of the end of its last burst: a dump of all
# threads says first what it is about. And how many characters of each.
KEPT_LINES = 20
LONGEST_LINE = 500
# Seconds without output after which a burst is over.
_BURST = 1.0
_READ = 1 << 16
# Seconds that a worker gets to write where each of its threads is.
DUMP = 0.3


@dataclass(frozen=True, slots=True)
class Ending:
    """How a process ended: its exit code, negative for a signal, and the last lines that it wrote."""

    code: int
    output: tuple[str, ...]

    @property
    def signal(self) -> str | None:
        """The name of the signal that ended it."""
        if self.code >= 0:
            return None
        try:
            return signal.Signals(-self.code).name
        except ValueError:
            return f"signal {-self.code}"

    @property
    def words(self) -> str:
        """As a part of a sentence."""
        return f"was killed by {self.signal}" if self.code < 0 else f"ended with exit code {self.code}"


Command = Callable[[int], Sequence[str]]


def worker_command(fd: int) -> list[str]:
    """The command of a worker whose end of the socket is `fd`."""
    return [sys.executable, "-Im", "mlxd.engines.worker", str(fd), str(os.getpid())]


class WorkerProcess:
    """Made on the event loop, and on the main thread: Linux ends a worker with the thread that started it.

    `take` is called with each message, `on_output` with each line of standard error, `on_end` once, when everything
    before the end was told. Raises OSError when no process can be started.
    """

    def __init__(
        self,
        take: Callable[[Any], None],
        on_output: Callable[[str], None],
        on_end: Callable[[Ending], None],
        command: Command = worker_command,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_output = on_output
        self._on_end = on_end
        self._first: list[str] = []
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._read_at = float("-inf")
        self._begun_line = b""
        self.broken: str | None = None
        self._killing: asyncio.TimerHandle | None = None
        own, theirs = socket.socketpair()
        try:
            self._process = subprocess.Popen(
                command(theirs.fileno()),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        except OSError:
            own.close()
            raise
        finally:
            theirs.close()
        assert self._process.stderr is not None, "it was asked for"
        self._stderr: IO[bytes] = self._process.stderr
        os.set_blocking(self._stderr.fileno(), False)
        self._loop.add_reader(self._stderr, self._read_output)
        self._link = Link(own, take, self._break)
        threading.Thread(target=self._wait, name=f"worker-{self.pid}", daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: msgspec.Struct) -> None:
        """Never waits."""
        self._link.send(message)

    def kill(self) -> None:
        """End it now, whatever it is at; a stopped one too."""
        self._process.kill()

    def kill_with_dump(self) -> None:
        """Have it write where its threads are, and end it."""
        if self._killing is None:
            self._process.send_signal(signal.SIGUSR1)
            self._killing = self._loop.call_later(DUMP, self.kill)

    def _break(self, why: str) -> None:
        self.broken = why
        self.kill()

    def _wait(self) -> None:
        code = self._process.wait()
        with contextlib.suppress(RuntimeError):  # the event loop is gone
            self._loop.call_soon_threadsafe(self._ended, code)

    def _ended(self, code: int) -> None:
        if self._killing is not None:
            self._killing.cancel()
        self._link.close()
        while self._read_output():
            pass
        if self._begun_line:
            self._line(self._begun_line)
        self._loop.remove_reader(self._stderr)
        self._stderr.close()
        self._on_end(Ending(code, (*self._first, *self._lines)))

    def _read_output(self) -> bool:
        """Take what was written; False when there is no more for now, or for good."""
        try:
            data = os.read(self._stderr.fileno(), _READ)
        except BlockingIOError:
            return False
        if not data:
            self._loop.remove_reader(self._stderr)
            return False
        now = self._loop.time()
        if now - self._read_at > _BURST:
            self._first, self._lines = [], deque(maxlen=KEPT_LINES)
        self._read_at = now
        *lines, self._begun_line = (self._begun_line + data).split(b"\n")
        self._begun_line = self._begun_line[-_READ:]
        for line in lines:
            self._line(line)
        return True

    def _line(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip()[:LONGEST_LINE]
        if not text:
            return
        (self._first if len(self._first) < KEPT_LINES else self._lines).append(text)
        self._on_output(text)
