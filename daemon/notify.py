"""Tells the service manager how the daemon is: systemd's protocol, in which each message is one datagram.

Where nobody listens, as in a terminal or under launchd, nothing is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Self

import structlog

log = structlog.stdlib.get_logger(__name__)

# Seconds that one message may take: whoever reads it may be busy.
_PATIENCE = 1.0


class Notifier:
    """Sends to the socket at `address`, "" for nobody; one that begins with "@" is abstract.

    `watchdog` is within how many seconds each sign of life has to come, None where none is awaited. `clock` gives
    nanoseconds of CLOCK_MONOTONIC.
    """

    def __init__(self, address: str, watchdog: float | None, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._address = address
        self._watchdog = watchdog
        self._clock = clock
        self._status = ""
        self._stopping = False
        self._failed = False

    @classmethod
    def from_environ(cls, environ: Mapping[str, str], pid: int) -> Self:
        """The one that the environment of the process `pid` asks for."""
        return cls(environ.get("NOTIFY_SOCKET", ""), _watchdog(environ, pid))

    def ready(self, status: str) -> None:
        """Requests are served; `status` is a line for people."""
        self._status = status
        self._send("READY=1", f"STATUS={status}")

    @contextlib.contextmanager
    def reloading(self) -> Iterator[None]:
        """While this is entered the configuration is read again."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={self._clock() // 1000}", "STATUS=reading the configuration again")
        try:
            yield
        finally:
            if not self._stopping:
                self._send("READY=1", f"STATUS={self._status}")

    def stopping(self, seconds: float) -> None:
        """The daemon stops, and may take so many seconds for that, whatever it was given before."""
        self._stopping = True
        usec = int(seconds * 1_000_000)
        self._send("STOPPING=1", f"EXTEND_TIMEOUT_USEC={usec}", "STATUS=stopping: what runs is finished first")

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """While this is entered the event loop sends signs of life, twice as often as is asked for."""
        feeding = asyncio.create_task(self._feed(), name="notify.watchdog")
        try:
            yield
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)

    async def _feed(self) -> None:
        while self._watchdog is not None:
            # one that finds no room is followed by another in time; the event loop waits for none
            self._send("WATCHDOG=1", patience=0.0)
            await asyncio.sleep(self._watchdog / 2)

    def _send(self, *lines: str, patience: float = _PATIENCE) -> None:
        """Send one message. What goes wrong is logged once: the daemon serves all the same."""
        if not self._address:
            return
        name = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as mouth:
                mouth.settimeout(patience)
                mouth.connect(name)
                mouth.send("\n".join(lines).encode())
        except OSError as error:
            if not self._failed:
                log.warning("service.notify_failed", socket=self._address, error=repr(error))
            self._failed = True


def _watchdog(environ: Mapping[str, str], pid: int) -> float | None:
    """Seconds between signs of life at most; None when none are awaited from this process."""
    usec, whose = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", str(pid))
    if whose != str(pid) or not usec.isdecimal() or int(usec) == 0:
        return None
    return int(usec) / 1_000_000
