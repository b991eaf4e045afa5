"""The reader's side of one embedding request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

from mlxd.engines.embedding_types import EmbeddingOutput, EmbeddingRequest


class Embedding:
    """The answer to one admitted request: `async with` it, and await its `output`.

    Leaving the block for any reason ends the request.
    """

    def __init__(self, request: EmbeddingRequest, leave: Callable[[Embedding], None]) -> None:
        self.request = request
        self._leave = leave
        self._item: EmbeddingOutput | Exception | None = None
        self._ready = asyncio.Event()

    @property
    def finished(self) -> bool:
        """True once the engine is done with the request, read or not."""
        return self._item is not None

    def put(self, item: EmbeddingOutput | Exception) -> None:
        """Called by the engine on the event loop; the first one counts."""
        if self._item is None:
            self._item = item
            self._ready.set()

    async def output(self) -> EmbeddingOutput:
        """All vectors. Raises the error that ended the request."""
        await self._ready.wait()
        if isinstance(self._item, Exception):
            raise self._item
        assert self._item is not None, "the event is set only with an item"
        return self._item

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(self)
