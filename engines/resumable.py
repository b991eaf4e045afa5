"""Work that can be left in the middle and gone on with, on one thread: MLX's arrays and streams stay where they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import greenlet

T = TypeVar("T")


class Resumable(Generic[T]):
    """Runs `work` in stretches. It ends a stretch by calling `pause`, from however deep inside; the next begins there.

    Used on one thread. `drop` ends it for good, and frees what it holds.
    """

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._greenlet = greenlet.greenlet(self._run)
        self._value: T | None = None

    @property
    def done(self) -> bool:
        """Whether the work has come to its end."""
        return bool(self._greenlet.dead)

    def go_on(self) -> T | None:
        """Work until the next pause, or to the end; the value at the end. Raises what the work raises."""
        self._greenlet.switch()
        return self._value

    def pause(self) -> None:
        """Called inside the work: go back to who called `go_on`. Nothing when the work is not what runs."""
        current = greenlet.getcurrent()
        if current is self._greenlet and current.parent is not None:
            current.parent.switch()

    def drop(self) -> None:
        """Leave the work where it is; its frames are unwound now."""
        self._greenlet.throw(greenlet.GreenletExit)

    def _run(self) -> None:
        self._value = self._work()
