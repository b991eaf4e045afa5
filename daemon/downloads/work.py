"""What the process of a download does, from the name of a repository to the folder of a model."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Sequence
from pathlib import Path

from mlxd.daemon.downloads import hub
from mlxd.daemon.downloads.messages import Done, DownloadFailed, Failed, Found, Job
from mlxd.daemon.downloads.places import begun, check_same_disk, finish, record_of_whole
from mlxd.daemon.downloads.room import check_room
from mlxd.daemon.downloads.selection import MAX_INDEX_BYTES, HubFile, named_by_index, select
from mlxd.daemon.downloads.teller import Send, Teller
from mlxd.daemon.downloads.transfer import Transfer
from mlxd.memory.files import read_bounded
from mlxd.memory.weights import INDEX_FILE

# A file that may not grow any more is as good as a disk that is full.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


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
        check_same_disk(folder, job.target)
        wanted = _without_copies(job, commit, folder, wanted)
        teller = Teller(folder, wanted, send)
        free = shutil.disk_usage(folder).free
        send(teller.found(commit, free))
        check_room(job, teller.bytes_total - teller.bytes_done, free)
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
    check_room(job, index.size, shutil.disk_usage(folder).free)
    Transfer(job, commit, index, folder / index.name, lambda _bytes, _verifying: None).run()
    return named_by_index(job.repo, files, read_bounded(folder / index.name, MAX_INDEX_BYTES))
