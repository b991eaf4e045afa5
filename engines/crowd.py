"""Who computes with MLX at the moment: its counters are one for the whole process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Crowd:
    """Who uses MLX at the moment; shared by all lanes of a process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._present = 0
        self._arrivals = 0

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Count as a user of MLX meanwhile."""
        with self._lock:
            self._present += 1
            self._arrivals += 1
        try:
            yield
        finally:
            with self._lock:
                self._present -= 1

    def alone_since(self) -> int | None:
        """A mark for `still_alone`, from one who has entered; None with others about."""
        with self._lock:
            return self._arrivals if self._present == 1 else None

    def still_alone(self, mark: int) -> bool:
        """Whether nobody else has entered since."""
        with self._lock:
            return self._arrivals == mark
