"""Where downloads are while they are not whole: a hidden folder beside the models, on the same disk."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from mlxd.daemon.downloads.messages import DownloadFailed
from mlxd.daemon.downloads.selection import HubFile
from mlxd.memory.files import BadFile, read_bounded
from mlxd.memory.model_config import CONFIG_FILE

HIDDEN = ".mlxd"
RECORD = ".mlxd-pull.json"
# Seconds after which the files of a download that nobody went on with are deleted.
KEPT = 7 * 86_400.0
# Seconds that the process of an earlier download of the same files gets to end.
LOCK_PATIENCE = 2.0

_FILES, _LOCK, _PULLS, _REMOVED = "files", "lock", "pulls", "removed"
_LOCK_POLL = 0.05
_MAX_RECORD_BYTES = 1_000_000


class Record(msgspec.Struct, frozen=True):
    """What a model's folder was downloaded from, with the size in bytes of each file."""

    repo: str
    commit: str
    files: dict[str, int]


def removed_folder(models_dir: Path) -> Path:
    """Where models are moved that are being deleted; nothing in it is used again."""
    return models_dir / HIDDEN / _REMOVED


def record_of_whole(target: Path, repo: str, commit: str) -> Record | None:
    """The record of this very model if it is there, with all its files as far as their sizes tell.

    Raises DownloadFailed if something else is there.
    """
    if os.path.lexists(target):
        record = _record(target)
        if record is None or (record.repo, record.commit) != (repo, commit):
            raise DownloadFailed("exists", f"{target} is there already; `mlxd rm` it first, or choose another name")
        return record
    if os.path.lexists(target.parent / CONFIG_FILE):
        message = f"{target.parent} is a model itself, one inside it would not be found; choose another name"
        raise DownloadFailed("exists", message)
    return None


def _record(folder: Path) -> Record | None:
    """What a whole folder was downloaded from."""
    try:
        record = msgspec.json.decode(read_bounded(folder / RECORD, _MAX_RECORD_BYTES), type=Record)
        sizes = {name: (folder / name).lstat().st_size for name in record.files}
    except (BadFile, msgspec.DecodeError, UnicodeDecodeError, OSError, ValueError):
        return None
    return record if sizes == record.files else None


@contextmanager
def begun(models_dir: Path, repo: str, commit: str) -> Iterator[Path]:
    """The folder for the files of this commit, with what came before, held against other processes.

    Raises DownloadFailed when another one holds it, and OSError.
    """
    place = models_dir / HIDDEN / _PULLS / f"{repo.replace('/', '--')}@{commit}"
    until = time.monotonic() + LOCK_PATIENCE
    while (held := _lock(place)) is None:
        if time.monotonic() > until:
            raise DownloadFailed("busy", f"{repo} is being downloaded into {models_dir} by another process")
        time.sleep(_LOCK_POLL)
    try:
        os.utime(place / _LOCK)
        files = place / _FILES
        files.mkdir(exist_ok=True)
        yield files
    finally:
        os.close(held)


def check_same_disk(files: Path, target: Path) -> None:
    """Raises DownloadFailed if the files could not be renamed into their place at the end, and OSError."""
    there = next(folder for folder in target.parents if folder.exists())
    if there.stat().st_dev != files.stat().st_dev:
        message = f"{there} is on another disk than {files}; choose another name, or undo the link or mount there"
        raise DownloadFailed("disk_error", message)


def finish(files: Path, target: Path, repo: str, commit: str, wanted: Sequence[HubFile]) -> None:
    """Put the files in their place, all at once. Raises DownloadFailed if that is taken by now, and OSError."""
    record = Record(repo, commit, {file.name: file.size for file in wanted})
    with (files / RECORD).open("wb") as out:
        out.write(msgspec.json.encode(record))
        out.flush()
        os.fsync(out.fileno())
    _drop_others(files, {*record.files, RECORD})
    for folder in (files, *filter(Path.is_dir, files.iterdir())):
        _sync(folder)
    target.parent.mkdir(parents=True, exist_ok=True)
    record_of_whole(target, repo, commit)
    files.rename(target)
    _sync(target.parent)
    shutil.rmtree(files.parent, ignore_errors=True)


def clean(models_dir: Path, now: float) -> list[Path]:
    """Delete what deletions left, and downloads that were not gone on with for KEPT. `now` counts from the epoch."""
    shutil.rmtree(removed_folder(models_dir), ignore_errors=True)
    gone = []
    for place in _listed(models_dir / HIDDEN / _PULLS):
        with contextlib.suppress(OSError):
            last = place / _LOCK if (place / _LOCK).exists() else place
            if now - last.stat().st_mtime > KEPT and (held := _lock(place)) is not None:
                shutil.rmtree(place, ignore_errors=True)
                os.close(held)
                gone.append(place)
    return gone


def _lock(place: Path) -> int | None:
    """Hold a folder until the descriptor is closed; None while another process does, or has just deleted it."""
    place.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(place / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_ino == (place / _LOCK).stat().st_ino:
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError:  # a disk without locks
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _drop_others(files: Path, names: set[str]) -> None:
    """What an earlier download of the same commit brought, and this one has no use for."""
    for path in [path for path in files.rglob("*") if not path.is_dir()]:
        if path.relative_to(files).as_posix() not in names:
            path.unlink()


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
