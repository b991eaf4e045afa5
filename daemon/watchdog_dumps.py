"""Where every thread stands, in a few small files: for whoever has to find out why something hung."""

from __future__ import annotations

import faulthandler
import os
import threading
from datetime import UTC, datetime
from pathlib import Path

KEPT = 5
"""Files that are kept, the newest ones."""
MAX_BYTES = 1_000_000
"""Of one file. faulthandler writes at most 100 threads of 100 frames, which is a tenth of that as a rule."""

# Written by faulthandler when no Python code runs any more, so it has to be open already.
_OWN = "hang.txt"


class HangDumps:
    """Files `hang-<time>.txt` in a folder that is there. All methods block, and are for any thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, occasion: str) -> Path:
        """Write where all threads stand now; the file. Raises OSError."""
        path, descriptor = self._new(occasion)
        try:
            faulthandler.dump_traceback(descriptor)
            os.ftruncate(descriptor, min(MAX_BYTES, os.fstat(descriptor).st_size))
        finally:
            os.close(descriptor)
        self._drop_oldest()
        return path

    def open_own(self) -> int:
        """The descriptor of the file that faulthandler writes to by itself; the caller closes it. Raises OSError."""
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(self._folder / _OWN, flags, 0o600)

    def take_own(self, descriptor: int, occasion: str) -> Path | None:
        """Move what faulthandler has written to a file of its own; None when there is nothing. Raises OSError."""
        found = os.pread(descriptor, MAX_BYTES, 0)
        if not found:
            return None
        path, new = self._new(occasion)
        try:
            os.write(new, found)
        finally:
            os.close(new)
        os.ftruncate(descriptor, 0)
        self._drop_oldest()
        return path

    def _new(self, occasion: str) -> tuple[Path, int]:
        now = datetime.now(UTC)
        path = self._folder / f"hang-{now:%Y%m%dT%H%M%S.%f}Z.txt"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        # faulthandler knows threads by number only
        names = "".join(f"0x{thread.ident or 0:016x} {thread.name}\n" for thread in threading.enumerate())
        os.write(descriptor, f"{now.isoformat()} process {os.getpid()}: {occasion}\n\n{names}\n".encode())
        return path, descriptor

    def _drop_oldest(self) -> None:
        for path in sorted(self._folder.glob("hang-*.txt"))[:-KEPT]:
            path.unlink(missing_ok=True)
