"""Whether there is memory for a prompt, and what is tried before it is refused."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from mlxd.engines.backend import ModelRunner
from mlxd.engines.errors import PrefillMemoryExceeded
from mlxd.engines.sequence import Sequence
from mlxd.engines.types import PrefillEvictionRequest


@dataclass(frozen=True, slots=True)
class PrefillMemory:
    """How the scheduler sees memory; both in bytes.

    `needed` prices a prompt of so many tokens, `headroom` is what is left now, None for no limit.
    """

    needed: Callable[[int], int]
    headroom: Callable[[], int | None]


NO_MEMORY_LIMIT = PrefillMemory(needed=lambda _: 0, headroom=lambda: None)


class Room(enum.Enum):
    """FREE: start · HELD: wait, running sequences or others will free some."""

    FREE = enum.auto()
    HELD = enum.auto()


class PrefillRoom:
    """In order: it fits · kept prefixes go · others are asked once · it is held while running sequences will free
    memory · buffers are given back · it is refused.
    """

    def __init__(self, memory: PrefillMemory, runner: ModelRunner, reclaim: Callable[[], None]) -> None:
        self._memory = memory
        self._runner = runner
        self._reclaim = reclaim

    def needed(self, sequence: Sequence) -> int:
        """Bytes that its prefill takes."""
        return self._memory.needed(len(sequence.request.prompt))

    def look(
        self, sequence: Sequence, promised: int, *, others_run: bool
    ) -> Room | PrefillEvictionRequest | PrefillMemoryExceeded:
        """Decide for one sequence; a PrefillEvictionRequest is to be sent, a PrefillMemoryExceeded ends it.

        `promised` bytes belong to sequences that were started in this step and have not taken them yet.
        """
        sequence.waiting_for = "slot"
        needed, headroom = self.needed(sequence), self._memory.headroom()
        if headroom is None or needed + promised <= headroom:
            return Room.FREE
        headroom -= promised
        headroom += self._trim_prefixes(needed - headroom)
        if needed <= headroom:
            return Room.FREE
        sequence.waiting_for = "memory"
        if sequence.awaits_room:
            return Room.HELD
        if not sequence.asked_for_room:
            sequence.asked_for_room = sequence.awaits_room = True
            return PrefillEvictionRequest(sequence.request.id, needed, headroom, "prefill")
        if others_run:
            return Room.HELD
        self._reclaim()
        headroom = self._memory.headroom()
        if headroom is None or needed <= headroom:
            return Room.FREE
        return PrefillMemoryExceeded(sequence.request.id, needed, max(0, headroom))

    def _trim_prefixes(self, short: int) -> int:
        prefixes = self._runner.prefixes
        return prefixes.trim(max(0, prefixes.nbytes - short)) if prefixes.nbytes else 0
