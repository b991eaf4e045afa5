"""Files that are replaced as a whole: whoever reads one sees all of the old one or all of the new one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
from pathlib import Path


def replace_file(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Have a file with this content, which is on the disk by then. A link is not followed.

    Only one at a time may write a file; what a killed writer leaves beside it, the next overwrites. Raises OSError.
    """
    new = path.with_name(f".{path.name}.new")
    try:
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
        with os.fdopen(descriptor, "wb") as stream:
            os.fchmod(stream.fileno(), mode)
            stream.write(content)
            stream.flush()
            _sync(stream.fileno())
        new.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _sync(descriptor: int) -> None:
    if sys.platform == "darwin":
        # fsync leaves it in the drive's own cache there; not every file system can do more
        with contextlib.suppress(OSError):
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
            return
    os.fsync(descriptor)
