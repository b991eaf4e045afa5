"""How long a load may go without a sign of life."""

from __future__ import annotations

import asyncio
from types import TracebackType


class Patience:
    """Ends what is awaited in it with TimeoutError: `stall` seconds after the last progress, None for never, or `stop`
    seconds after it was asked to stop.
    """

    def __init__(self, stall: float | None, stop: float) -> None:
        self.asked = False
        self._stall = stall
        self._stop = stop
        self._scope: asyncio.Timeout | None = None

    async def __aenter__(self) -> None:
        self._scope = await asyncio.timeout(self._stop if self.asked else self._stall).__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        scope, self._scope = self._scope, None
        assert scope is not None, "it is left after it was entered"
        await scope.__aexit__(kind, error, traceback)

    def progress(self) -> None:
        """It goes on."""
        if not self.asked and self._stall is not None:
            self._reschedule(self._stall)

    def ask(self) -> None:
        """It was asked to stop; once counts."""
        if not self.asked:
            self.asked = True
            self._reschedule(self._stop)

    def _reschedule(self, seconds: float) -> None:
        if self._scope is not None and not self._scope.expired():
            self._scope.reschedule(asyncio.get_running_loop().time() + seconds)
