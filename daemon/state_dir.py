"""The state directory and its lock: one daemon at a time works in it."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from mlxd.daemon.config_errors import ConfigError, Problem

LOCK_FILE = "lock"
"""In the directory: it is locked by the daemon that works there, and holds its process id."""

_PID_BYTES = 32


class StateDirBusy(Exception):
    """Another mlxd works in this state directory."""


class StateDir:
    """Holds the lock while it is entered; the kernel drops it with the process, so it is never stale."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> Self:
        """Make and lock the directory. Raises StateDirBusy, and ConfigError for one that cannot be used."""
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = (self.path / LOCK_FILE).open("ab+", buffering=0)
        except OSError as error:
            message = f"{self.path} cannot be used: {error.strerror or error}; make it a folder that can be written"
            raise ConfigError(Problem(message, "server.state_dir")) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StateDirBusy(self._who()) from None
        with contextlib.suppress(OSError):  # the number is for people; a full disk leaves it out
            self._lock.truncate(0)
            self._lock.write(str(os.getpid()).encode())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.close()

    def _who(self) -> str:
        """Who has the lock, by the number in it, and what to do."""
        with self._lock:
            self._lock.seek(0)
            owner = self._lock.read(_PID_BYTES).decode(errors="replace").strip()
        if not owner or _is_running(owner):
            who = f"process {owner or 'unknown'}"
            return f"another mlxd ({who}) already runs on {self.path}; stop it or set server.state_dir"
        lock = self.path / LOCK_FILE
        return (
            f"{lock} is held, but not by process {owner} that it names: that one is gone. One that it started may be "
            f"left, `lsof {lock}` names it; end it or set server.state_dir"
        )


def _is_running(pid: str) -> bool:
    """Whether there is a process of this number; a text that is no number is nobody's."""
    if not pid.isdecimal() or int(pid) == 0:
        return False
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # it is somebody else's
        return True
    return True
