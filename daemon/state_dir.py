"""The state directory and its lock: one daemon at a time works in it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self


class StateDirBusy(Exception):
    """Another mlxd works in this state directory."""


class StateDir:
    """Holds the lock while it is entered; the kernel drops it with the process, so it is never stale."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> Self:
        """Make and lock the directory. Raises StateDirBusy, or OSError when it cannot be made."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = (self.path / "lock").open("a+")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.seek(0)
            owner = self._lock.read().strip() or "unknown"
            self._lock.close()
            raise StateDirBusy(
                f"another mlxd (process {owner}) already runs on {self.path}; stop it or set server.state_dir"
            ) from None
        self._lock.truncate(0)
        self._lock.write(str(os.getpid()))
        self._lock.flush()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.close()
