"""One reader's slot: outputs that come faster than they are read are merged, errors arrive as objects."""

from __future__ import annotations

import asyncio

from mlxd.engines.types import RequestOutput


class OutputCollector:
    """Holds at most one pending output for one reader. Used on the event loop only."""

    def __init__(self) -> None:
        self._pending: RequestOutput | None = None
        self._error: Exception | None = None
        self._ready = asyncio.Event()
        self.finished = False

    def put(self, item: RequestOutput | Exception) -> None:
        """Add an output, merging it with one that was not read yet, or the error that ends the stream."""
        if self.finished:
            return
        if isinstance(item, Exception):
            self._error = item
            self.finished = True
        else:
            self._pending = item if self._pending is None else RequestOutput.joined((self._pending, item))
            self.finished = item.finish_reason is not None
        self._ready.set()

    async def get(self) -> RequestOutput:
        """The next output; raises the error once everything before it was read."""
        await self._ready.wait()
        if self._pending is not None:
            output, self._pending = self._pending, None
            if self._error is None:
                self._ready.clear()
            return output
        assert self._error is not None, "the event is set only with an output or an error"
        raise self._error
