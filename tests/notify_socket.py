"""The other end of a service manager's notification socket."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from types import TracebackType
from typing import Self

DEADLINE = 30.0


class NotifySocket:
    """Receives what is sent to `address`: a path, or "@name" for an abstract one."""

    def __init__(self, address: Path | str) -> None:
        self.address = str(address)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(f"\0{self.address[1:]}" if self.address.startswith("@") else self.address)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def next(self, seconds: float = DEADLINE) -> dict[str, str]:
        """The next message. Raises TimeoutError."""
        self._socket.settimeout(seconds)
        return dict(line.split("=", 1) for line in self._socket.recv(4096).decode().splitlines())

    def until(self, name: str) -> list[dict[str, str]]:
        """The messages up to the first that has this name, which is the last of them."""
        seen, end = [], time.monotonic() + DEADLINE
        while not seen or name not in seen[-1]:
            seen.append(self.next(end - time.monotonic()))
        return seen
