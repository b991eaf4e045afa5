"""Whether there is memory for rows that go on: their buffers grow in steps, all rows of a batch at once."""

from __future__ import annotations

from collections.abc import Callable

from mlxd.engines.backend import ModelRunner
from mlxd.engines.memory_share import Stake
from mlxd.engines.pacer import FIRST_CHUNK
from mlxd.engines.prefill_room import ASK_AGAIN
from mlxd.engines.sequence import Sequence
from mlxd.engines.types import PrefillEvictionRequest


class GrowthRoom:
    """In order: it fits · kept prefixes go · free buffers are given back · others are asked, and the step waits for
    their answer. What then happens is the scheduler's.
    """

    def __init__(self, stake: Stake, runner: ModelRunner, reclaim: Callable[[], None]) -> None:
        self._stake = stake
        self._runner = runner
        self._reclaim = reclaim
        self._asked_at = float("-inf")
        self.asked_for: str | None = None

    @property
    def awaits_room(self) -> bool:
        """Whether an answer is under way."""
        return self.asked_for is not None

    def fits(self) -> bool:
        """Whether the rows may grow, after what costs nobody anything was tried."""
        if self._short() <= 0:
            return True
        prefixes = self._runner.prefixes
        if prefixes.nbytes and prefixes.trim(max(0, prefixes.nbytes - self._short())) and self._short() <= 0:
            return True
        self._reclaim()
        return self._short() <= 0

    def may_ask(self, now: float) -> bool:
        """Whether others were not asked just now."""
        return now - self._asked_at >= ASK_AGAIN

    def ask(self, sequence: Sequence, now: float) -> PrefillEvictionRequest:
        """Ask for room in the name of a running sequence; `answered` follows."""
        self._asked_at, self.asked_for = now, sequence.request.id
        room = self._stake.growth_left() or 0
        return PrefillEvictionRequest(sequence.request.id, self._need(), room, "decode")

    def answered(self, now: float) -> None:
        """The answer has come, or nobody waits for it any more."""
        self._asked_at, self.asked_for = now, None

    def _need(self) -> int:
        return self._runner.demand(None, FIRST_CHUNK)

    def _short(self) -> int:
        room = self._stake.growth_left()
        return 0 if room is None else self._need() - room
