"""The daemon's end of a worker's socket, on the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any

import msgspec

from mlxd.engines.worker.frames import BadFrame, Frames, frame
from mlxd.engines.worker.to_daemon import ToDaemon

_READ = 1 << 18
# Bytes that may wait for a worker that does not read. Requests are bounded before they come here; this is for a fault.
MOST_WAITING = 1 << 28


class Link:
    """Sends at once what the kernel takes and the rest later; `take` is called with each message. `broken` is called
    once for what is no message, or when too much waits.
    """

    def __init__(self, connection: socket.socket, take: Callable[[Any], None], broken: Callable[[str], None]) -> None:
        self._socket = connection
        self._take = take
        self._broken = broken
        self._frames = Frames(ToDaemon)
        self._waiting = bytearray()
        self._writing = False
        self._loop = asyncio.get_running_loop()
        connection.setblocking(False)
        self._loop.add_reader(connection, self._readable)

    def send(self, message: msgspec.Struct) -> None:
        """Never waits; nothing happens once it is closed."""
        if self._socket.fileno() < 0:
            return
        self._waiting += frame(message)
        if not self._writing:
            self._writable()
        if len(self._waiting) > MOST_WAITING:
            self._waiting.clear()
            self._broken("it does not read what it is sent")

    def close(self) -> None:
        """Take what has come, then close. Idempotent."""
        if self._socket.fileno() < 0:
            return
        while self._readable():
            pass
        self._stop_reading()
        if self._writing:
            self._loop.remove_writer(self._socket)
        self._socket.close()

    def _stop_reading(self) -> None:
        self._loop.remove_reader(self._socket)

    def _readable(self) -> bool:
        """Take what has come; False when there is no more for now, or for good."""
        try:
            data = self._socket.recv(_READ)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            data = b""
        if not data:
            self._stop_reading()
            return False
        try:
            messages = self._frames.feed(data)
        except BadFrame as error:
            self._stop_reading()
            self._broken(f"it sent what is no message: {error}")
            return False
        for message in messages:
            self._take(message)
        return True

    def _writable(self) -> None:
        with contextlib.suppress(BlockingIOError, InterruptedError):
            try:
                sent = self._socket.send(self._waiting)
            except (BrokenPipeError, ConnectionResetError):  # its end is on the way
                sent = len(self._waiting)
            del self._waiting[:sent]
        wanted = bool(self._waiting)
        if wanted and not self._writing:
            self._loop.add_writer(self._socket, self._writable)
        elif self._writing and not wanted:
            self._loop.remove_writer(self._socket)
        self._writing = wanted
