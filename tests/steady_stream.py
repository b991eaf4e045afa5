"""A stream that is read all the time, and how long it ever stood still."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from dataclasses import dataclass

from daemon_process import Api


@dataclass(frozen=True)
class Gaps:
    """Times between two chunks in seconds, with those at both ends of the time that was looked at."""

    seconds: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def longest(self) -> float:
        return max(self.seconds)

    def __str__(self) -> str:
        return f"{1000 * self.median:.1f} ms, at most {1000 * self.longest:.0f} ms of {len(self.seconds)}"


class SteadyStream:
    """A chat that goes on to the end of the block: `async with SteadyStream(api, "model") as steady`."""

    def __init__(self, api: Api, model: str) -> None:
        self._api = api
        self._model = model
        self._at: list[float] = []
        self._wanted = 0
        self._enough = asyncio.Event()

    async def __aenter__(self) -> SteadyStream:
        self._reading = asyncio.create_task(self._read())
        await self._chunks(1)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._reading.cancel()
        await asyncio.wait([self._reading])
        if not self._reading.cancelled():
            self._reading.result()
            raise AssertionError("the stream came to its end")

    async def normal(self, count: int = 300) -> Gaps:
        """Of so many chunks from now on."""
        since = time.monotonic()
        await self._chunks(count)
        return self.gaps(since)

    def gaps(self, since: float, until: float | None = None) -> Gaps:
        """Of all chunks since a time."""
        until = time.monotonic() if until is None else until
        at = [since, *(each for each in self._at if since < each < until), until]
        return Gaps([later - earlier for earlier, later in itertools.pairwise(at)])

    async def _chunks(self, count: int) -> None:
        """Wait for so many more."""
        self._wanted = len(self._at) + count
        self._enough.clear()
        waiting = asyncio.create_task(self._enough.wait())
        await asyncio.wait([waiting, self._reading], timeout=30, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        assert self._enough.is_set(), "the stream stands still"

    async def _read(self) -> None:
        async with self._api.stream(self._model, "go on", max_tokens=32000, ignore_eos=True) as response:
            async for line in response.content:
                if line.startswith(b"data: {"):
                    self._at.append(time.monotonic())
                    if len(self._at) >= self._wanted:
                        self._enough.set()
