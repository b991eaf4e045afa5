"""The entry point of a worker process: `python -m mlxd.engines.worker FD PID`, with its end of the socket and the
daemon's process.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import socket
import sys
import threading
import traceback
from pathlib import Path

from setproctitle import setproctitle

from mlxd.engines.child_process import ORPHANED, belong_to
from mlxd.engines.worker.channel import Channel
from mlxd.engines.worker.log_lines import log_to
from mlxd.engines.worker.protocol import protocol
from mlxd.engines.worker.to_daemon import Hello
from mlxd.engines.worker.to_worker import Start
from mlxd.engines.worker.worker import FAILED, Worker

# Thousandths of the machine's memory that count as this process's own beside what it has.
_OOM_SCORE = 300


def main() -> None:
    """Work until the daemon is gone or wants no more; never returns."""
    belong_to(int(sys.argv[2]))
    _go_first()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    threading.excepthook = _die
    try:
        _serve(socket.socket(fileno=int(sys.argv[1])))
    # Threads that are at work in native code must not hold up the end.
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        os._exit(FAILED)
    os._exit(ORPHANED)


def _die(fault: threading.ExceptHookArgs) -> None:
    """A thread has left undone what others wait for: the daemon knows what to do about a worker that is gone."""
    threading.__excepthook__(fault)
    os._exit(FAILED)


def _serve(connection: socket.socket) -> None:
    """Raises BadFrame, and for a bug anything."""
    connection.set_inheritable(False)  # it must close with this process
    channel = Channel(connection)
    channel.send(Hello(protocol()))
    messages = channel.receive()
    start = next(messages, None)
    if not isinstance(start, Start):
        return
    setproctitle(f"mlxd: {start.config.name}")
    if start.config.shards is not None:
        os.environ.update(start.config.shards.variables)
    log_to(channel, start.log_level)
    worker = Worker(channel, start)
    worker.run()
    for message in messages:
        worker.take(message)


def _go_first() -> None:
    """Where the kernel ends processes for want of memory, a model's goes before the daemon."""
    score = Path("/proc/self/oom_score_adj")
    with contextlib.suppress(OSError):  # another system, or a sandbox
        score.write_text(str(max(int(score.read_text()), _OOM_SCORE)))


if __name__ == "__main__":
    main()
