"""What a worker holds for the daemon, which knows it by number: images and compiled guides never cross."""

from __future__ import annotations

import threading
from itertools import count
from typing import Any


class Held:
    """Any thread may call anything here."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = count(1)
        self._things: dict[int, Any] = {}

    def hold(self, thing: Any) -> int:
        """Keep something until it is dropped; its number."""
        with self._lock:
            number = next(self._numbers)
            self._things[number] = thing
        return number

    def get(self, number: int | None) -> Any:
        """What has this number; None for None. Raises KeyError."""
        if number is None:
            return None
        with self._lock:
            return self._things[number]

    def drop(self, number: int) -> None:
        """Let go of what has this number."""
        with self._lock:
            self._things.pop(number, None)
