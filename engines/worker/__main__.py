"""The entry point of a worker process: `python -m mlxd.engines.worker FD PID`, with its end of the socket and the
daemon's process.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import socket
import sys

from setproctitle import setproctitle

from mlxd.engines.worker.channel import ORPHANED, Channel
from mlxd.engines.worker.frames import protocol
from mlxd.engines.worker.log_lines import log_to
from mlxd.engines.worker.to_daemon import Hello
from mlxd.engines.worker.to_worker import Start
from mlxd.engines.worker.worker import Worker

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Work until the daemon is gone or wants no more; never returns."""
    _die_with(int(sys.argv[2]))
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: it is the daemon's to end its workers
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    channel.send(Hello(protocol()))
    messages = channel.receive()
    start = next(messages, None)
    if isinstance(start, Start):
        setproctitle(f"mlxd: {start.config.name}")
        log_to(channel, start.log_level)
        worker = Worker(channel, start)
        worker.run()
        for message in messages:
            worker.take(message)
    os._exit(ORPHANED)


def _die_with(daemon: int) -> None:
    """Linux ends a process with its parent if it is asked to; a stuck or stopped one too. Elsewhere the end of the
    socket does it.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != daemon:  # it is gone already
            os._exit(ORPHANED)


if __name__ == "__main__":
    main()
