"""Runs the real `mlxd` script: with pipes, or on a terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SCRIPT = str(Path(sys.executable).with_name("mlxd"))
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_DEADLINE = 30.0


def clean_environ(home: Path, **extra: str) -> dict[str, str]:
    """An environment in which no setting of the developer counts."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MLXD_", "LD_PRELOAD"))}
    return kept | {"HOME": str(home), "MLXD_API_KEY": "", "TERM": "xterm", "COLUMNS": "100"} | extra


def mlxd(*args: str, home: Path, stdin: bytes = b"", **extra: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end."""
    return subprocess.run(
        [SCRIPT, *args],
        input=stdin,
        capture_output=True,
        env=clean_environ(home, **extra),
        timeout=_DEADLINE,
        check=False,
    )


class Terminal:
    """A command on a pseudo-terminal; `seen` is all that it showed, escapes included."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self.process = process
        self.seen = ""
        self._master = master

    @property
    def text(self) -> str:
        return _ESCAPES.sub("", self.seen)

    def type(self, line: str) -> None:
        os.write(self._master, line.encode())

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def interrupt_until(self, text: str) -> None:
        """Interrupt as often as it takes: readline can miss a signal that comes right after a key."""
        ends = time.monotonic() + _DEADLINE
        while text not in self.seen:
            assert time.monotonic() < ends, f"never showed {text!r}: {self.seen!r}"
            self.interrupt()
            while text not in self.seen and select.select([self._master], [], [], 0.5)[0]:
                assert self._read(), f"ended without {text!r}: {self.seen!r}"

    def wait_for(self, text: str, times: int = 1) -> None:
        """Read until the text was shown so many times."""
        ends = time.monotonic() + _DEADLINE
        while self.seen.count(text) < times:
            assert time.monotonic() < ends, f"never showed {text!r}: {self.seen!r}"
            assert self._read(), f"ended without {text!r}: {self.seen!r}"

    def end(self) -> int:
        """Read all that is left; the exit code."""
        while self._read():
            pass
        return self.process.wait(_DEADLINE)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._master], [], [], _DEADLINE)
        assert ready, f"nothing more came: {self.seen!r}"
        try:
            data = os.read(self._master, 65536)
        except OSError:
            # Linux says so when the other end is closed
            return False
        self.seen += data.decode(errors="replace")
        return bool(data)


@contextmanager
def on_terminal(*args: str, home: Path, piped_stdin: bool = False, **extra: str) -> Iterator[Terminal]:
    """Run a command with its output on a pseudo-terminal, and its input too unless that is piped (and empty)."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [SCRIPT, *args],
        stdin=subprocess.DEVNULL if piped_stdin else slave,
        stdout=slave,
        stderr=slave,
        env=clean_environ(home, **extra),
    )
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        process.kill()
        process.wait()
        os.close(master)
