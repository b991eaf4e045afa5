"""The reader's side of one request."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self

from mlxd.engines.collector import OutputCollector
from mlxd.engines.types import Request, RequestOutput


class Generation:
    """The outputs of one admitted request: `async with` it, `async for` over it.

    Leaving the block for any reason ends the request; a slow reader gets merged outputs. An error of the engine
    is raised to the reader after the outputs before it.
    """

    def __init__(self, request: Request, leave: Callable[[Generation], None]) -> None:
        self.request = request
        self._leave = leave
        self._collector = OutputCollector()
        self._read_last = False

    @property
    def finished(self) -> bool:
        """True once the engine is done with the request, read or not."""
        return self._collector.finished

    def put(self, item: RequestOutput | Exception) -> None:
        """Called by the engine on the event loop."""
        self._collector.put(item)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RequestOutput:
        if self._read_last:
            raise StopAsyncIteration
        output = await self._collector.get()
        self._read_last = output.finish_reason is not None
        return output
