"""One reader's slot: outputs that come faster than they are read are merged, errors arrive as objects."""

from __future__ import annotations

import asyncio
from collections import deque

from mlxd.engines.merged_outputs import merged
from mlxd.engines.types import RequestOutput


class OutputCollector:
    """Holds what one reader has not read yet, and gives it in as few outputs as its order allows. Used on the event
    loop only.
    """

    def __init__(self) -> None:
        self._pending: deque[RequestOutput] = deque()
        self._error: Exception | None = None
        self._ready = asyncio.Event()
        self.finished = False

    def put(self, item: RequestOutput | Exception) -> None:
        """Add an output, or the error that ends the stream."""
        if self.finished:
            return
        if isinstance(item, Exception):
            self._error = item
            self.finished = True
        else:
            self._pending.append(item)
            self.finished = item.finish_reason is not None
        self._ready.set()

    async def get(self) -> RequestOutput:
        """The next output; raises the error once everything before it was read."""
        await self._ready.wait()
        if self._pending:
            output = self._next()
            if not self._pending and self._error is None:
                self._ready.clear()
            return output
        assert self._error is not None, "the event is set only with an output or an error"
        raise self._error

    def _next(self) -> RequestOutput:
        if len(self._pending) == 1:
            return self._pending.popleft()
        first, *rest = merged(self._pending)
        self._pending = deque(rest)
        return first
