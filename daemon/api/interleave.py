"""Reads several generations as one stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from mlxd.engines.generation import Generation
from mlxd.engines.types import RequestOutput

Indexed = tuple[int, RequestOutput]


async def interleaved(generations: Sequence[Generation]) -> AsyncGenerator[Indexed, None]:
    """The outputs of all generations as they come, each with the place of its generation.

    Ends after the last one, raises what any of them raises, and leaves no task behind. A slow reader gets merged
    outputs, as it does of one generation.
    """
    if len(generations) == 1:  # the common case pays for no tasks
        async for output in generations[0]:
            yield 0, output
        return
    reading = {place: _read(generation) for place, generation in enumerate(generations)}
    try:
        while reading:
            await asyncio.wait(reading.values(), return_when=asyncio.FIRST_COMPLETED)
            for place in [place for place, task in reading.items() if task.done()]:
                output = reading[place].result()
                del reading[place]
                if output.finish_reason is None:
                    reading[place] = _read(generations[place])
                yield place, output
    finally:
        for task in reading.values():
            task.cancel()
        await asyncio.gather(*reading.values(), return_exceptions=True)


def _read(generation: Generation) -> asyncio.Task[RequestOutput]:
    return asyncio.create_task(anext(generation))
