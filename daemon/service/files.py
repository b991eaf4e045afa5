"""Writes a service file as a whole, and takes it away."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from mlxd.daemon.service.failures import ServiceFailed
from mlxd.daemon.whole_file import replace_file

_MODE = 0o644


class Change(StrEnum):
    """What became of a file."""

    WRITTEN = "wrote"
    REPLACED = "replaced"
    SAME = "unchanged"


def read_file(path: Path) -> bytes | None:
    """What is in a file, None without one. Raises ServiceFailed for what is no file, and OSError."""
    if not path.exists():
        return None
    if not path.is_file():
        raise ServiceFailed(f"{path} is no file of its own (is the service masked?); take it away first")
    return path.read_bytes()


def put_file(path: Path, content: bytes) -> Change:
    """Have a file with this content: whoever reads it sees all of the old one or all of the new one.

    A link is followed. Raises ServiceFailed for what is no file, and OSError.
    """
    before = read_file(path)
    if before == content:
        return Change.SAME
    file = path.resolve()
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_file(file, content, _MODE)
    return Change.WRITTEN if before is None else Change.REPLACED
