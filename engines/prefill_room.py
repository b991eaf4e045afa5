"""Whether there is memory for a prompt, and what is tried before it is refused."""

from __future__ import annotations

import enum
from collections.abc import Callable

from mlxd.engines.backend import ModelRunner
from mlxd.engines.errors import MemoryWaitTimeout, PrefillMemoryExceeded
from mlxd.engines.image_price import NO_IMAGES, ImageNeed
from mlxd.engines.memory_share import Stake
from mlxd.engines.pacer import FIRST_CHUNK
from mlxd.engines.prompt_price import RowNeed
from mlxd.engines.sequence import Sequence
from mlxd.engines.types import EngineLimits, PrefillEvictionRequest

# Seconds after which others are asked for room again, while a prompt is held: those who ran may be idle by then.
ASK_AGAIN = 1.0


class Room(enum.Enum):
    """FREE: start, its bytes are promised · HELD: wait, others will free some."""

    FREE = enum.auto()
    HELD = enum.auto()


Verdict = Room | PrefillEvictionRequest | PrefillMemoryExceeded | MemoryWaitTimeout


class PrefillRoom:
    """In order: it fits · it fits in chunks like those before · kept prefixes go, but for its own · others are asked ·
    free buffers are given back · it fits in the smallest chunks · it is held while others run · it is refused.

    `on_memory` is called, on any thread, when a sequence that is held should be looked at again.
    """

    def __init__(
        self,
        stake: Stake,
        runner: ModelRunner,
        reclaim: Callable[[], None],
        limits: EngineLimits,
        on_memory: Callable[[], None],
    ) -> None:
        self._stake = stake
        self._on_memory = on_memory
        self._runner = runner
        self._reclaim = reclaim
        self._limits = limits

    def retune(self, limits: EngineLimits) -> None:
        """Other limits from the next look on."""
        self._limits = limits

    def look(self, sequence: Sequence, now: float, *, others_here: bool) -> Verdict:
        """Decide for one sequence at `now`, on the scheduler's clock. A PrefillEvictionRequest is to be sent, an error
        ends it.
        """
        if sequence.awaits_room or sequence.awaits_memory:
            return Room.HELD
        sequence.waiting_for = "slot"
        # before the look: others may end during it, and giving buffers back takes its time
        self._stake.wake(self._on_memory)
        others = others_here or self._stake.others_run()
        if others and (self._stake.brake.hold or (sequence.awaits_departure and others_here)):
            return self._hold(sequence, now, others_here=others_here)
        largest = self._limits.prefill_chunk
        usual = min(largest, max(FIRST_CHUNK, 2 * self._runner.short_prompt))
        if self._fits(sequence, largest) or self._fits(sequence, usual):
            return Room.FREE
        if self._trim_prefixes(sequence, usual) and self._fits(sequence, usual):
            return Room.FREE
        least = min(largest, FIRST_CHUNK)
        if self._may_ask(sequence, now):
            return self._ask(sequence, usual if sequence.asked_at is None else least, now, others=others)
        if sequence.held_since is None or not others:
            self._reclaim()
        if self._fits(sequence, usual) or self._fits(sequence, least):
            return Room.FREE
        if others:
            return self._hold(sequence, now, others_here=others_here)
        return self._in_the_end(sequence, least, now)

    def _in_the_end(self, sequence: Sequence, least: int, now: float) -> Verdict:
        """Nobody runs any more, and it does not fit below the soft limit."""
        # whoever ran when others were asked may be idle now, and less may be had where all that was asked for was not
        if sequence.asked_beside or self._demand(sequence, least) < sequence.asked_bytes:
            return self._ask(sequence, least, now, others=False)
        if sequence.preempted and self._goes_on(sequence, least):
            return Room.FREE
        return self._refused(sequence, least)

    def _goes_on(self, sequence: Sequence, chunk: int) -> bool:
        """Whether what has begun to answer fits where it could have stayed, had nobody been older."""
        room = self._stake.growth_left()
        if room is not None and self._demand(sequence, chunk) > room:
            return False
        sequence.chunk = chunk
        sequence.held_since = None
        return True

    def _may_ask(self, sequence: Sequence, now: float) -> bool:
        """Whether others were not asked yet, or not just now while it is held and may wait on."""
        if sequence.asked_at is None or sequence.held_since is None:
            return sequence.asked_at is None
        bound = self._limits.hold_timeout
        may_wait = bound is None or now - sequence.held_since < bound
        return may_wait and now - sequence.asked_at >= ASK_AGAIN

    def _fits(self, sequence: Sequence, chunk: int) -> bool:
        """Whether it fits with this chunk; then its bytes are promised, and its chunk is bound."""
        if self._stake.claim(self._demand(sequence, chunk)) is not None:
            return False
        sequence.chunk = chunk
        sequence.held_since = None
        return True

    def _short(self, sequence: Sequence, chunk: int) -> tuple[int, int]:
        """Bytes that it takes, and those that are there."""
        return self._demand(sequence, chunk), self._stake.room() or 0

    def _demand(self, sequence: Sequence, chunk: int) -> int:
        """Bytes that it takes, beside what runs, in chunks of this size."""
        cached = sequence.look_up(self._runner.prefixes)
        need = RowNeed(len(sequence.pending), sequence.left, cached, cached, self._images(sequence, cached))
        return self._runner.demand(need, chunk)

    def _images(self, sequence: Sequence, cached: int) -> ImageNeed:
        images = sequence.request.images
        if images is None:
            return NO_IMAGES
        return self._runner.price.images.of(images, images.tokens_in(sequence.tokens[:cached]))

    def _trim_prefixes(self, sequence: Sequence, chunk: int) -> int:
        prefixes = self._runner.prefixes
        if not prefixes.nbytes:
            return 0
        demand, room = self._short(sequence, chunk)
        return prefixes.trim(max(0, prefixes.nbytes - max(0, demand - room)), sparing=sequence.tokens)

    def _ask(self, sequence: Sequence, chunk: int, now: float, *, others: bool) -> PrefillEvictionRequest:
        sequence.asked_at, sequence.asked_beside, sequence.awaits_room = now, others, True
        sequence.waiting_for = "memory"
        demand, room = self._short(sequence, chunk)
        sequence.asked_bytes = demand
        return PrefillEvictionRequest(sequence.request.id, demand, room, "prefill")

    def _hold(self, sequence: Sequence, now: float, *, others_here: bool) -> Room | MemoryWaitTimeout:
        sequence.waiting_for = "memory"
        # what has begun to answer is not refused beside those that it gave way to: they end
        if sequence.held_since is None or (sequence.preempted and others_here):
            sequence.held_since = now
        bound, waited = self._limits.hold_timeout, now - sequence.held_since
        if bound is not None and waited >= bound:
            return MemoryWaitTimeout(sequence.request.id, *self._short(sequence, FIRST_CHUNK), waited)
        sequence.awaits_memory = True
        return Room.HELD

    def _refused(self, sequence: Sequence, chunk: int) -> PrefillMemoryExceeded:
        demand, room = self._short(sequence, chunk)
        return PrefillMemoryExceeded(sequence.request.id, demand, max(0, room), self._stake.limit)
