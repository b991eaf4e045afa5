"""Whether there is memory for a batch, and what is tried before a request is refused."""

from __future__ import annotations

import enum
from collections.abc import Callable

from mlxd.engines.embedding_queue import Item
from mlxd.engines.errors import MemoryWaitTimeout, PrefillMemoryExceeded
from mlxd.engines.memory_share import Stake
from mlxd.engines.prefill_room import ASK_AGAIN
from mlxd.engines.transients import Transients
from mlxd.engines.types import EngineLimits, PrefillEvictionRequest


class Wait(enum.Enum):
    """The input is held: others will free memory."""

    HELD = enum.auto()


Verdict = Wait | PrefillEvictionRequest | PrefillMemoryExceeded | MemoryWaitTimeout


class EmbeddingRoom:
    """In order: the batch fits · half of it does, and so on · others are asked for room for one input · free buffers
    are given back · it is held while others run · its request is refused.

    A batch gives everything back when its step is over. `on_memory` is called, on any thread, when requests that are
    held should be looked at again.
    """

    def __init__(
        self,
        stake: Stake,
        reclaim: Callable[[], None],
        limits: EngineLimits,
        on_memory: Callable[[], None],
    ) -> None:
        self._stake = stake
        self._reclaim = reclaim
        self._limits = limits
        self._on_memory = on_memory

    def retune(self, limits: EngineLimits) -> None:
        """Other limits from the next look on."""
        self._limits = limits

    def fitting(self, batch: list[Item], price: Transients) -> int:
        """How many of a batch, from its beginning, there is memory for; it is promised to them."""
        rows = len(batch)
        while rows and self._stake.claim(needed(batch[:rows], price)) is not None:
            rows //= 2
        return rows

    def look(self, item: Item, price: Transients, now: float) -> Verdict | None:
        """What becomes of an input that does not fit by itself; None when it does now, and its bytes are promised.

        A PrefillEvictionRequest is to be sent, an error ends its request.
        """
        work = item.work
        waited, bound = now - (now if work.held_since is None else work.held_since), self._limits.hold_timeout
        may_wait = bound is None or waited < bound
        # whoever ran when others were asked may be idle now
        if work.asked_at is None or (work.held_since is not None and may_wait and now - work.asked_at >= ASK_AGAIN):
            work.asked_at, work.awaits = now, "room"
            return PrefillEvictionRequest(work.request.id, *self._short(item, price), "prefill")
        # before the look: others may end during it, and giving buffers back takes its time
        self._stake.wake(self._on_memory)
        others = self._stake.others_run()
        if work.held_since is None or not others:
            self._reclaim()
        if self.fitting([item], price):
            return None
        if not others:
            return PrefillMemoryExceeded(work.request.id, *self._short(item, price), self._stake.limit)
        if not may_wait:
            return MemoryWaitTimeout(work.request.id, *self._short(item, price), waited)
        work.held_since = now - waited
        work.awaits = "memory"
        return Wait.HELD

    def _short(self, item: Item, price: Transients) -> tuple[int, int]:
        """Bytes that it takes by itself, and those that are there."""
        return needed([item], price), max(0, self._stake.room() or 0)


def needed(batch: list[Item], price: Transients) -> int:
    """Bytes that a step with these inputs takes."""
    width = max(len(item.input) for item in batch)
    return price.estimate(len(batch), width, width)
