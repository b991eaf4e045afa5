"""The entry point of the process of a download: `python -m mlxd.daemon.downloads PID`, with the daemon's process.

The job comes on standard input, which ends with the daemon; messages go to standard output.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from typing import BinaryIO

import msgspec
from setproctitle import setproctitle

from mlxd.daemon.downloads.messages import Job, Message
from mlxd.daemon.downloads.work import download
from mlxd.engines.child_process import ORPHANED, belong_to

# Whoever computes goes first: checksums of many gigabytes keep a core busy.
_NICENESS = 10


def main() -> None:
    """Download, unless the daemon is gone."""
    belong_to(int(sys.argv[1]))
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=Job)
    setproctitle(f"mlxd: pull {job.repo}")
    threading.Thread(target=_wait_for_end, args=(sys.stdin.buffer,), name="daemon", daemon=True).start()
    download(job, _sender())
    os._exit(0)  # a connection that hangs must not hold up the end


def _sender() -> Callable[[Message], None]:
    """What writes messages to the standard output; what libraries print goes to the standard error from here on."""
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def send(message: Message) -> None:
        out.write(msgspec.json.encode(message) + b"\n")
        out.flush()

    return send


def _wait_for_end(stream: BinaryIO) -> None:
    stream.read()
    os._exit(ORPHANED)


if __name__ == "__main__":
    main()
