"""Those who wait until idle models have made room."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count

from mlxd.registry import events as ev


class Rooms:
    """Turns a need for bytes into an await. `post` tells the planner."""

    def __init__(self, post: Callable[[ev.Event], None]) -> None:
        self._post = post
        self._ids = count(1)
        self._futures: dict[int, asyncio.Future[None]] = {}

    async def want(
        self,
        short: int,
        reason: str,
        *,
        model: str | None = None,
        request_id: str | None = None,
        partial: bool = False,
    ) -> None:
        """Wait until what can be evicted for `short` bytes is gone; see RoomNeeded for `partial`."""
        room_id = next(self._ids)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._futures[room_id] = future
        self._post(ev.RoomNeeded(room_id, short, reason, model, request_id, partial=partial))
        await future

    def answer(self, room_id: int) -> None:
        """The models that were evicted are gone."""
        future = self._futures.pop(room_id)
        if not future.done():  # its reader may have been cancelled
            future.set_result(None)
