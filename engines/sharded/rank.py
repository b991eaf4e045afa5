"""One other rank, as rank 0 sees it: a process of this machine, or of another behind a remote shell."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from mlxd.engines.child_process import ending, module_command
from mlxd.engines.sharded.orders import Ping
from mlxd.engines.sharded.pipe import Pipe
from mlxd.engines.sharded.reports import Beat, Failed, Report
from mlxd.engines.shards import Shards
from mlxd.engines.worker.frames import BadFrame

# Seconds in which a rank that was told to leave does so.
LEAVING = 2.0
# Seconds in which one that has closed its output ends.
ENDING = 0.5


class Rank:
    """Started with its making; raises OSError where that cannot be done.

    `take` gets its reports, and `lost` is called as soon as it is gone, on a thread of its own. Linux ends it with the
    thread that made it.
    """

    def __init__(
        self, shards: Shards, rank: int, take: Callable[[int, Any], None], lost: Callable[[Rank], None]
    ) -> None:
        self.rank = rank
        self.here = shards.hosts[rank].here
        self.title = shards.title(rank)
        self.heard_at = time.monotonic()
        self.beats = False
        self.room: int | None = None
        self._take = take
        self._lost = lost
        self._leaving = False
        self._garbage: BadFrame | None = None
        self._process = subprocess.Popen(
            command(shards, rank), stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0
        )
        assert self._process.stdin is not None, "it was asked for"
        assert self._process.stdout is not None, "it was asked for"
        self._pipe = Pipe(self._process.stdout.fileno(), self._process.stdin.fileno(), Report)
        self._reader = threading.Thread(target=self._read, name=f"rank-{rank}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The process of the rank, or of the remote shell."""
        return self._process.pid

    def why(self) -> str:
        """Of one that is gone, why, as a part of a sentence."""
        if self._garbage is not None:
            return f"it sent what is no message: {self._garbage}; does its shell write something at the start?"
        try:
            return f"its process {ending(self._process.wait(ENDING))}"
        except subprocess.TimeoutExpired:
            return "its process has closed its output"

    def tell(self, order: msgspec.Struct) -> None:
        """Send an order; one that is gone is told of by `lost`."""
        with contextlib.suppress(OSError):
            self._pipe.send(order)

    def ping(self) -> None:
        """Let it know that this rank is there; one that takes nothing is not waited for."""
        with contextlib.suppress(OSError):
            self._pipe.hint(Ping())

    def leave(self) -> None:
        """What happens to it from here on is nobody's concern."""
        self._leaving = True

    def end(self) -> None:
        """Close its input, which ends it, and wait a little; then kill it."""
        self._leaving = True
        assert self._process.stdin is not None, "it was asked for"
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(LEAVING)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(LEAVING)
        if not self._reader.is_alive() and self._process.stdout is not None:
            self._process.stdout.close()

    def _read(self) -> None:
        try:
            for report in self._pipe.receive():
                self.heard_at = time.monotonic()
                if isinstance(report, Beat):
                    self.room, self.beats = report.room, True
                    continue
                # that it ends then needs no more words
                self._leaving = self._leaving or isinstance(report, Failed)
                self._take(self.rank, report)
        except BadFrame as error:
            self._garbage = error
            self._process.kill()
        if not self._leaving:
            self._lost(self)


def command(shards: Shards, rank: int) -> list[str]:
    """What starts a rank."""
    host = shards.hosts[rank]
    if host.here:
        return module_command(shards.module, os.getpid())
    there = [shards.python, "-P", "-m", shards.module, "0"]
    return [*shards.shell, host.name, shlex.join(there)]
