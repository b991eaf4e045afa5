"""Messages between rank 0 and one other rank, over the other's standard input and output.

A remote shell carries both, with its own encryption and keys: no port is opened for them.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator
from typing import Any

import msgspec

from mlxd.engines.worker.frames import Frames, frame

_READ = 1 << 18


class Pipe:
    """One end. Any thread may send; a rank that reads nothing holds up whoever sends."""

    def __init__(self, incoming: int, outgoing: int, messages: Any) -> None:
        self._incoming = incoming
        self._outgoing = outgoing
        self._messages = messages
        self._lock = threading.Lock()

    def send(self, message: msgspec.Struct) -> None:
        """Hand a message to the kernel. Raises OSError when the other end is closed."""
        data = memoryview(frame(message))
        with self._lock:
            while data:
                data = data[os.write(self._outgoing, data) :]

    def hint(self, message: msgspec.Struct) -> None:
        """Send a short message if that waits for nobody. Raises OSError when the other end is closed."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            # what is writable takes a short message whole
            if select.select([], [self._outgoing], [], 0)[1]:
                os.write(self._outgoing, frame(message))
        finally:
            self._lock.release()

    def receive(self) -> Iterator[Any]:
        """Messages until the other end is closed. Raises BadFrame."""
        frames = Frames(self._messages)
        while data := self._read():
            yield from frames.feed(data)

    def _read(self) -> bytes:
        try:
            return os.read(self._incoming, _READ)
        except OSError:
            return b""
