"""Futures of those who wait for a grant: each ends exactly once, with a grant, a refusal, or by leaving."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count

from mlxd.registry import events as ev
from mlxd.registry.residency import Purpose, Waiter


class Waits:
    """Turns a waiter into an await. `post` tells the planner."""

    def __init__(self, post: Callable[[ev.Event], None], clock: Callable[[], float]) -> None:
        self._post = post
        self._clock = clock
        self._ids = count(1)
        self._futures: dict[int, asyncio.Future[ev.Grant]] = {}

    async def for_model(
        self,
        model: str,
        purpose: Purpose,
        bound: float | None = None,
        request_id: str | None = None,
        key: str | None = None,
    ) -> ev.Grant:
        """Wait until `model` is ready, at most `bound` seconds. Raises what the planner refuses with."""
        now = self._clock()
        deadline = None if bound is None else now + bound
        waiter = Waiter(next(self._ids), model, now, purpose, deadline, request_id, key)
        future: asyncio.Future[ev.Grant] = asyncio.get_running_loop().create_future()
        self._futures[waiter.id] = future
        try:
            self._post(ev.Wanted(waiter))
            return await future
        except asyncio.CancelledError:
            self._leave(waiter, future)
            raise
        finally:
            del self._futures[waiter.id]

    def grant(self, grant: ev.Grant) -> None:
        future = self._futures.get(grant.waiter_id)
        if future is not None and not future.done():
            future.set_result(grant)
        else:
            self._give_back(grant)  # its reader was cancelled and has not told yet

    def refuse(self, waiter_id: int, error: Exception) -> None:
        future = self._futures.get(waiter_id)
        if future is not None and not future.done():
            future.set_exception(error)

    def _leave(self, waiter: Waiter, future: asyncio.Future[ev.Grant]) -> None:
        """The reader was cancelled, perhaps in the very moment of a grant or a refusal."""
        if future.cancelled() or not future.done():
            self._post(ev.Left(waiter.id))
        elif future.exception() is None:
            self._give_back(future.result())

    def _give_back(self, grant: ev.Grant) -> None:
        if grant.leased:
            self._post(ev.Released(grant.model, grant.generation))
