"""The daemon's end of a worker's socket, on the event loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import msgspec
import structlog

from mlxd.engines.worker.frames import BadFrame, Frames, frame
from mlxd.engines.worker.to_daemon import ToDaemon

log = structlog.stdlib.get_logger(__name__)

_READ = 1 << 16
# Reads that take all that a kernel holds of what a process has sent before it ended.
_LAST_READS = 64
# Bytes that may wait for a worker that takes none, and seconds for which it may take none then. Requests are bounded
# before they come here; this is for a fault.
MOST_WAITING = 1 << 28
STUCK = 5.0


class Link:
    """Sends at once what the kernel takes and the rest later; `take` is called with each message.

    `broken` is called once: for what is no message or cannot be taken, when too much waits, or with None when the other
    end is closed. Nothing is heard or sent after it.
    """

    def __init__(
        self, connection: socket.socket, take: Callable[[Any], None], broken: Callable[[str | None], None]
    ) -> None:
        self._socket = connection
        self._take = take
        self._broken = broken
        self._over = False
        self._frames = Frames(ToDaemon)
        self._waiting = bytearray()
        self._writing = False
        self._loop = asyncio.get_running_loop()
        self._took_at = self._loop.time()
        connection.setblocking(False)
        self._loop.add_reader(connection, self._readable)

    def send(self, message: msgspec.Struct) -> None:
        """Never waits; nothing happens once it is broken or closed. Raises ValueError as `frame` does."""
        if self._over:
            return
        self._waiting += frame(message)
        if not self._writing:
            self._took_at = self._loop.time()
            self._writable()
        if len(self._waiting) > MOST_WAITING and self._loop.time() - self._took_at > STUCK:
            self._break("it does not read what it is sent")

    def close(self) -> None:
        """Take what has come, then close. Idempotent."""
        # whoever has a copy of the other end might go on for ever
        for _ in range(_LAST_READS):
            if self._over or not self._readable():
                break
        self._stop()
        self._socket.close()

    def _stop(self) -> None:
        if not self._over:
            self._over = True
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._waiting.clear()

    def _break(self, why: str | None) -> None:
        if not self._over:
            self._stop()
            self._broken(why)

    def _readable(self) -> bool:
        """Take what has come; False when there is no more for now, or for good."""
        try:
            data = self._socket.recv(_READ)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            data = b""
        if not data:
            self._break(None)
            return False
        try:
            for message in self._frames.feed(data):
                self._take(message)
        except BadFrame as error:
            self._break(f"it sent what is no message: {error}")
        # What is lost with it may be what a request waits for.
        except Exception as error:
            log.exception("worker.message_broke")
            self._break(f"it sent what cannot be taken: {type(error).__name__}: {error}")
        return True

    def _writable(self) -> None:
        try:
            sent = self._socket.send(self._waiting)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except (BrokenPipeError, ConnectionResetError):  # what it has said before it left is still to be read
            sent = len(self._waiting)
        except OSError as error:
            self._break(f"nothing can be sent to it: {error}")
            return
        if sent:
            self._took_at = self._loop.time()
        del self._waiting[:sent]
        wanted = bool(self._waiting)
        if wanted and not self._writing:
            self._loop.add_writer(self._socket, self._writable)
        elif self._writing and not wanted:
            self._loop.remove_writer(self._socket)
        self._writing = wanted
