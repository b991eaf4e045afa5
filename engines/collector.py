"""One reader's slot: outputs that come faster than they are read are merged, errors arrive as objects."""

from __future__ import annotations

import asyncio
from collections import deque

from mlxd.engines.types import RequestOutput


class OutputCollector:
    """Holds what one reader has not read yet, in as few outputs as its order allows. Used on the event loop only."""

    def __init__(self) -> None:
        self._pending: deque[RequestOutput] = deque()
        self._error: Exception | None = None
        self._ready = asyncio.Event()
        self.finished = False

    def put(self, item: RequestOutput | Exception) -> None:
        """Add an output, merging it with the one before it if that can be, or the error that ends the stream."""
        if self.finished:
            return
        if isinstance(item, Exception):
            self._error = item
            self.finished = True
        else:
            self._add(item)
            self.finished = item.finish_reason is not None
        self._ready.set()

    async def get(self) -> RequestOutput:
        """The next output; raises the error once everything before it was read."""
        await self._ready.wait()
        if self._pending:
            output = self._pending.popleft()
            if not self._pending and self._error is None:
                self._ready.clear()
            return output
        assert self._error is not None, "the event is set only with an output or an error"
        raise self._error

    def _add(self, output: RequestOutput) -> None:
        if self._pending and self._pending[-1].may_take(output):
            output = RequestOutput.joined((self._pending.pop(), output))
        self._pending.append(output)
