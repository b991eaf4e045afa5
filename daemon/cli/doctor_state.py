"""The state directory as `mlxd doctor` sees it: whether it can be used, and who works in it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from mlxd.daemon.cli.doctor_address import Running
from mlxd.daemon.cli.doctor_checks import Check, Group
from mlxd.daemon.state_dir import LOCK_FILE

GROUP = Group("state")
_PID_BYTES = 32
_SET = "or set server.state_dir to one that can be written"


def state_checks(path: Path, running: Running | None) -> list[Check]:
    """All about the state directory; `running` is the daemon that answers at the address."""
    return [_directory(path), _lock(path, running)]


def _directory(path: Path) -> Check:
    details = {"path": str(path)}
    there = next(folder for folder in (path, *path.parents) if os.path.lexists(folder))
    if not there.is_dir():
        found = f"{path} cannot be used: {there} is no folder"
        return GROUP.problem("directory", found, f"move {there} away, {_SET}", **details)
    if not os.access(there, os.W_OK | os.X_OK):
        found = f"{path} cannot be used: {there} cannot be written"
        return GROUP.problem("directory", found, f"make {there} writable, {_SET}", **details)
    found = f"{path} can be written" if there == path else f"{path} will be made at the first start"
    return GROUP.ok("directory", found, **details)


def _lock(path: Path, running: Running | None) -> Check:
    try:
        owner = _owner(path / LOCK_FILE)
    except OSError as error:
        found = f"its lock cannot be read: {error.strerror}"
        return GROUP.problem("lock", found, f"make {path / LOCK_FILE} readable and writable, {_SET}")
    if owner is None:
        return GROUP.ok("lock", "no daemon works in it", pid=None)
    if running is not None and str(running.health.pid) == owner:
        return GROUP.ok("lock", f"the daemon at {running.url} works in it", pid=running.health.pid)
    found = f"a daemon (process {owner}) works in it that does not answer at the configured address"
    advice = "use that one, stop it, or set server.state_dir for a second one"
    return GROUP.warning("lock", found, advice, pid=int(owner) if owner.isdecimal() else None)


def _owner(lock: Path) -> str | None:
    """Who holds the lock, by the number in it, None when nobody does. It is shared for an instant to see that.

    Raises OSError.
    """
    try:
        stream = lock.open("rb")
    except (FileNotFoundError, NotADirectoryError):
        return None
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return stream.read(_PID_BYTES).decode(errors="replace").strip() or "unknown"
    return None
