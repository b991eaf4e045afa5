"""Whether a disk has room for a download, and for the others that are on their way onto it. Bytes."""

from __future__ import annotations

from mlxd.daemon.downloads.messages import DownloadFailed, Job

# Bytes that downloads leave free.
MARGIN = 256_000_000


def check_room(job: Job, missing: int, free: int, others: int = 0) -> None:
    """Raises DownloadFailed if `free` is too little for what is missing of this and of `others`."""
    needed = missing + others + MARGIN
    if missing and needed > free:
        shared = f", {others} of them for other downloads," if others else ""
        message = (
            f"{needed} bytes are needed in {job.models_dir}{shared} and {free} are free; make room, then pull again"
        )
        raise DownloadFailed("no_space", message, needed_bytes=needed, free_bytes=free)
