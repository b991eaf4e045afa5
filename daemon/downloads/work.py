"""What the process of a download does, from the name of a repository to the folder of a model."""

from __future__ import annotations

import errno
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from mlxd.daemon.downloads import hub
from mlxd.daemon.downloads.messages import Done, DownloadFailed, Failed, Found, Job, Message, Progress
from mlxd.daemon.downloads.places import begun, finish, record_of_whole
from mlxd.daemon.downloads.selection import MAX_INDEX_BYTES, HubFile, named_by_index, select
from mlxd.daemon.downloads.transfer import Transfer, bytes_there
from mlxd.memory.files import read_bounded
from mlxd.memory.weights import INDEX_FILE

# Bytes that a download leaves free.
MARGIN = 256_000_000
# Seconds between two messages of progress, and between two that say the same: the process is alive.
INTERVAL = 0.25
LIFE_SIGN = 20.0

# A file that may not grow any more is as good as a disk that is full.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

Send = Callable[[Message], None]


def download(job: Job, send: Send) -> None:
    """Do the job and tell of it; the last message is Done or Failed."""
    try:
        _download(job, send)
    except DownloadFailed as error:
        send(error.failed)
    except OSError as error:
        full = error.errno in _FULL
        what = "the disk is full: make room and pull again, it goes on" if full else error.strerror or str(error)
        send(Failed("disk_full" if full else "disk_error", f"{error.filename or job.models_dir}: {what}"))
    else:
        send(Done())


def _download(job: Job, send: Send) -> None:
    commit, every = hub.files_of(job)
    there = record_of_whole(job.target, job.repo, commit)
    if there is not None:
        files, size = len(there.files), sum(there.files.values())
        send(Found(commit, files, files, size, size))
        return
    wanted = select(job.repo, every)
    job.folder.mkdir(parents=True, exist_ok=True)
    with begun(job.folder, job.repo, commit) as folder:
        wanted = _without_copies(job, commit, folder, wanted)
        teller = _Teller(folder, wanted, send)
        send(teller.found(commit))
        _check_space(job, teller.bytes_total - teller.bytes_done)
        with teller:
            for file in wanted:
                Transfer(job, commit, file, folder / file.name, teller.of(file)).run()
                teller.ended(file)
        finish(folder, job.target, job.repo, commit, wanted)


def _without_copies(job: Job, commit: str, folder: Path, files: Sequence[HubFile]) -> list[HubFile]:
    index = next((file for file in files if file.name == INDEX_FILE), None)
    if index is None:
        return list(files)
    if index.size > MAX_INDEX_BYTES:
        raise DownloadFailed("bad_repository", f"{INDEX_FILE} of {job.repo} has {index.size} bytes")
    _check_space(job, index.size)
    Transfer(job, commit, index, folder / index.name, lambda _bytes, _verifying: None).run()
    return named_by_index(job.repo, files, read_bounded(folder / index.name, MAX_INDEX_BYTES))


def _check_space(job: Job, missing: int) -> None:
    needed, free = missing + MARGIN, shutil.disk_usage(job.folder).free
    if missing and needed > free:
        message = f"{needed} bytes are needed in {job.models_dir} and {free} are free; make room, then pull again"
        raise DownloadFailed("no_space", message, needed_bytes=needed, free_bytes=free)


class _Teller:
    """Adds up what is there. While entered it tells of it now and then, also when nothing more comes."""

    def __init__(self, folder: Path, files: Sequence[HubFile], send: Send) -> None:
        self._send = send
        self._there = {file.name: bytes_there(folder / file.name, file) for file in files}
        self._whole = {file.name for file in files if (folder / file.name).exists()}
        self._verifying = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
        self.bytes_total = sum(file.size for file in files)
        self.bytes_done = sum(self._there.values())

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        """Nothing is told after this."""
        self._over.set()
        self._thread.join()

    def found(self, commit: str) -> Found:
        """What there is at the beginning."""
        return Found(commit, len(self._whole), len(self._there), self.bytes_done, self.bytes_total)

    def of(self, file: HubFile) -> Callable[[int, bool], None]:
        """What is called as the bytes of this file come. Reading again what is there takes nothing away from it."""

        def tell(count: int, verifying: bool) -> None:
            self._verifying = verifying
            if not verifying:
                self.bytes_done += count - self._there[file.name]
                self._there[file.name] = count

        return tell

    def ended(self, file: HubFile) -> None:
        """The file is there, whole."""
        self._whole.add(file.name)

    def _run(self) -> None:
        told, at = None, 0.0
        while not self._over.wait(INTERVAL):
            now = Progress(len(self._whole), self.bytes_done, self._verifying)
            if now != told or time.monotonic() > at + LIFE_SIGN:
                told, at = now, time.monotonic()
                self._send(now)
