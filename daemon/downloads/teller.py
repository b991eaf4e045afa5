"""Tells how a download goes on, from a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from mlxd.daemon.downloads.messages import Found, Message, Progress
from mlxd.daemon.downloads.selection import HubFile
from mlxd.daemon.downloads.transfer import bytes_there

# Seconds between two messages of progress, and between two that say the same: something goes on.
INTERVAL = 0.25
LIFE_SIGN = 20.0

Send = Callable[[Message], None]


class Teller:
    """Adds up what is there. While entered it tells of it now and then, also when that is only being read.

    It falls silent when nothing goes on: a disk may hang.
    """

    def __init__(
        self,
        folder: Path,
        files: Sequence[HubFile],
        send: Send,
        *,
        interval: float = INTERVAL,
        life_sign: float = LIFE_SIGN,
    ) -> None:
        self._send = send
        self._interval = interval
        self._life_sign = life_sign
        self._there = {file.name: bytes_there(folder / file.name, file) for file in files}
        self._whole = {file.name for file in files if (folder / file.name).exists()}
        self._verifying = False
        self._steps = 0
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

    def found(self, commit: str, free: int) -> Found:
        """What there is at the beginning."""
        return Found(commit, len(self._whole), len(self._there), self.bytes_done, self.bytes_total, free)

    def of(self, file: HubFile) -> Callable[[int, bool], None]:
        """What is called as the bytes of this file come. Reading again what is there takes nothing away from it."""

        def tell(count: int, verifying: bool) -> None:
            self._verifying = verifying
            self._steps += 1
            if not verifying:
                self.bytes_done += count - self._there[file.name]
                self._there[file.name] = count

        return tell

    def ended(self, file: HubFile) -> None:
        """The file is there, whole."""
        self._whole.add(file.name)

    def _run(self) -> None:
        told, at, steps = None, 0.0, 0
        while not self._over.wait(self._interval):
            now = Progress(len(self._whole), self.bytes_done, self._verifying)
            if now != told or (self._steps != steps and time.monotonic() > at + self._life_sign):
                told, at, steps = now, time.monotonic(), self._steps
                self._send(now)
