"""The worker's end of the socket."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import msgspec

from mlxd.engines.child_process import ORPHANED
from mlxd.engines.worker.frames import Frames, frame
from mlxd.engines.worker.to_worker import ToWorker

_READ = 1 << 18


class Channel:
    """Any thread may send. A daemon that reads nothing holds up whoever sends, and with it the engine: nothing piles
    up. The process ends with the daemon, whatever it is at.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._lock = threading.Lock()

    def send(self, message: msgspec.Struct) -> None:
        """Hand a message to the kernel."""
        data = frame(message)
        try:
            with self._lock:
                self._socket.sendall(data)
        except OSError:
            os._exit(ORPHANED)

    def receive(self) -> Iterator[Any]:
        """Messages until the daemon closes its end. Raises BadFrame."""
        frames = Frames(ToWorker)
        while data := self._read():
            yield from frames.feed(data)

    def _read(self) -> bytes:
        try:
            return self._socket.recv(_READ)
        except OSError:
            return b""
