"""Who computes with MLX at the moment: its counters are one for the whole process."""

from __future__ import annotations

import threading


class Crowd:
    """Who uses MLX at the moment; shared by all lanes of a process. While it is closed, who wants to enter waits."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._present = 0
        self._arrivals = 0
        self._closed = False

    def entered(self) -> Crowd:
        """Count as a user of MLX inside this context."""
        return self

    def __enter__(self) -> None:
        with self._changed:
            while self._closed:
                self._changed.wait()
            self._present += 1
            self._arrivals += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._present -= 1
            if self._present == 0:
                self._changed.notify_all()

    def close(self, timeout: float) -> bool:
        """Let nobody enter until `open`, its twin; whether all have left within `timeout` seconds. Blocks."""
        with self._changed:
            self._closed = True
            return self._changed.wait_for(lambda: self._present == 0, timeout)

    def open(self) -> None:
        """Let everybody enter."""
        with self._changed:
            self._closed = False
            self._changed.notify_all()

    def alone_since(self) -> int | None:
        """A mark for `still_alone`, from one who has entered; None with others about."""
        with self._changed:
            return self._arrivals if self._present == 1 else None

    def still_alone(self, mark: int) -> bool:
        """Whether nobody else has entered since."""
        with self._changed:
            return self._arrivals == mark
