"""Gets one file: goes on from the bytes that are there, and takes it only if its checksum is the hub's."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from mlxd.daemon.downloads import hub
from mlxd.daemon.downloads.messages import DownloadFailed, Job
from mlxd.daemon.downloads.selection import HubFile

PART = ".part"
# Seconds between two attempts.
PAUSE = 1.0

_PARTIAL, _RANGE_UNSATISFIABLE = 206, 416
_BLOCK = 1 << 20

Tell = Callable[[int, bool], None]
"""Called with the bytes of the file that are there, and whether they are only being read."""


def part_of(target: Path) -> Path:
    """Where the bytes of a file are that is not whole."""
    return target.with_name(target.name + PART)


def bytes_there(target: Path, file: HubFile) -> int:
    """How many bytes of the file need not come again."""
    for path in (target, part_of(target)):
        try:
            size = path.lstat().st_size
        except FileNotFoundError:
            continue
        return size if size <= file.size and (path != target or size == file.size) else 0
    return 0


class Transfer:
    """One file of a commit on its way into `target`, beside which it grows."""

    def __init__(self, job: Job, commit: str, file: HubFile, target: Path, tell: Tell) -> None:
        self._job = job
        self._commit = commit
        self._file = file
        self._target = target
        self._tell = tell
        self._done = 0
        self._digest = self._new_digest()

    def run(self) -> None:
        """Get it, unless it is there. Raises DownloadFailed, and OSError of the disk."""
        if self._target.exists() and bytes_there(self._target, self._file) == self._file.size:
            self._tell(self._file.size, False)
            return
        self._target.parent.mkdir(parents=True, exist_ok=True)
        part = part_of(self._target)
        with part.open("ab") as out:
            self._read_again(part, out)
            self._receive_all(out)
            self._tell(self._done, True)
            out.flush()
            os.fsync(out.fileno())
        if self._digest.hexdigest() != (self._file.sha256 or self._file.blob_sha1):
            part.unlink()
            self._mismatch("its content is not what the hub declares")
        part.replace(self._target)

    def _read_again(self, part: Path, out: BinaryIO) -> None:
        """Take up what came before, as far as it can be the beginning of this file."""
        if part.stat().st_size > self._file.size:
            self._start_over(out)
        with part.open("rb") as before:
            while block := before.read(_BLOCK):
                self._digest.update(block)
                self._done += len(block)
                self._tell(self._done, True)

    def _receive_all(self, out: BinaryIO) -> None:
        """Ask again for what is missing, until all is there or nothing has come for too long."""
        most, heard = self._done, time.monotonic()
        while self._done < self._file.size:
            try:
                self._receive(out)
                trouble: Exception | None = None
            except hub.HTTPError as error:
                if not hub.is_passing(error):
                    raise hub.refusal(error, self._job) from error
                trouble = error
            if self._done > most:  # a server without ranges, which breaks off at the same place, brings nothing
                most, heard = self._done, time.monotonic()
            elif time.monotonic() - heard > self._job.stall_s:
                raise self._stalled(trouble)
            if self._done < self._file.size:
                time.sleep(PAUSE)

    def _receive(self, out: BinaryIO) -> None:
        sent = hub.headers()
        if self._done:
            sent["Range"] = f"bytes={self._done}-"
        with hub.open_file(self._job, self._commit, self._file.name, sent) as response:
            if self._done and response.status_code == _RANGE_UNSATISFIABLE:
                self._start_over(out)
                self._mismatch(f"it has fewer than the {self._file.size} bytes that the hub declares")
            hub.checked(response)
            if self._done and response.status_code != _PARTIAL:
                self._start_over(out)
            for block in response.iter_raw():  # as it is stored: what is packed may grow without end
                self._take(block, out)

    def _take(self, block: bytes, out: BinaryIO) -> None:
        if self._done + len(block) > self._file.size:
            self._start_over(out)
            self._mismatch(f"it has more than the {self._file.size} bytes that the hub declares")
        out.write(block)
        out.flush()
        self._digest.update(block)
        self._done += len(block)
        self._tell(self._done, False)

    def _start_over(self, out: BinaryIO) -> None:
        out.truncate(0)
        self._done = 0
        self._digest = self._new_digest()

    def _new_digest(self) -> hashlib._Hash:
        if self._file.sha256 is not None:
            return hashlib.sha256()
        # git's own name of a file, which is no protection against those who wrote it
        return hashlib.sha1(b"blob %d\0" % self._file.size, usedforsecurity=False)

    def _mismatch(self, what: str) -> None:
        message = f"{self._file.name} did not come as it should: {what}; it was deleted, pull again to get it anew"
        raise DownloadFailed("bad_checksum", message)

    def _stalled(self, trouble: Exception | None) -> DownloadFailed:
        if trouble is not None and self._done == 0:
            return hub.refusal(trouble, self._job)
        message = (
            f"nothing of {self._file.name} has come for {self._job.stall_s:.0f} s; pull again, it goes on from there"
        )
        return DownloadFailed("stalled", message)
