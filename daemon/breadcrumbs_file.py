"""The file of breadcrumbs: read whole or not at all, and on the disk before whoever writes it goes on."""

from __future__ import annotations

from pathlib import Path

import msgspec

from mlxd.daemon.breadcrumbs_record import VERSION, RunRecord
from mlxd.daemon.config_errors import ConfigError
from mlxd.daemon.config_file import read_text
from mlxd.daemon.whole_file import replace_file

FILE = "breadcrumbs.json"
"""In the state directory."""


class RecordUnread(Exception):
    """There is a file, but nothing can be learnt from it."""


class _Versioned(msgspec.Struct):
    version: int


def read_record(path: Path) -> RunRecord | None:
    """What the file says, None when there is none. Raises RecordUnread."""
    try:
        text = read_text(path)
    except ConfigError as error:
        raise RecordUnread(str(error)) from error
    if text is None:
        return None
    try:
        version = msgspec.json.decode(text, type=_Versioned).version
        if version > VERSION:
            raise RecordUnread(f"{path}: it is of a later version of mlxd ({version})")
        return msgspec.json.decode(text, type=RunRecord)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RecordUnread(f"{path}: {error}") from error


def write_record(path: Path, record: RunRecord) -> None:
    """Replace the file; returns when that is on the disk. Only one at a time may write. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    replace_file(path, msgspec.json.encode(record))
