"""What is done when memory gets short: the guard says when, this gives it back, rung by rung."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from mlxd.engines.errors import FootprintExceeded
from mlxd.engines.memory_share import OFF, Brake, MemoryShare
from mlxd.memory.crossing import CeilingEvent, RecoveredEvent, SoftEvent
from mlxd.memory.guard import MemoryGuard
from mlxd.memory.ladder import Ladder, Rung
from mlxd.registry.registry import ModelRegistry

log = structlog.stdlib.get_logger(__name__)

# Bytes that a trim must free to be a decision: above the soft limit one is tried every few seconds.
WORTH_TELLING = 1_000_000


class Reclaimer(Protocol):
    """Gives free buffers back to the system."""

    async def reclaim(self) -> None: ...


@dataclass(frozen=True, slots=True)
class MemoryRelief:
    """The guard's callbacks. `counted` is told of each rung as it is taken."""

    guard: MemoryGuard
    registry: ModelRegistry
    engines: Reclaimer
    share: MemoryShare
    counted: Callable[[Rung], None] = lambda _: None
    ladder: Ladder = field(default_factory=Ladder)

    async def on_soft(self, _: SoftEvent) -> None:
        """Get below the soft limit again."""
        await self._get_below_soft("memory_soft")

    async def on_ceiling(self, event: CeilingEvent) -> None:
        """Abort every request, then get below the soft limit again."""
        error = FootprintExceeded(event.footprint_bytes, event.ceiling_bytes, event.limit)
        inputs = {
            "footprint_bytes": event.footprint_bytes,
            "ceiling_bytes": event.ceiling_bytes,
            "limit": event.limit,
        }
        self._take(Rung.ABORT_ALL)
        self.registry.abort_all(error, "memory_ceiling", inputs)
        await self._get_below_soft("memory_ceiling")

    async def on_recovered(self, _: RecoveredEvent) -> None:
        """Let prompts start again, in chunks of any size."""
        self._let_go()

    def on_reading(self) -> None:
        """A rung that was still being climbed when memory recovered must not stay: no event would follow it."""
        if not self.guard.is_short:
            self._let_go()

    def _let_go(self) -> None:
        if self.ladder.leave():
            self.share.brake_to(OFF)

    async def _get_below_soft(self, reason: str) -> None:
        """One rung after the other, until it is enough. What is above the brakes may be had again a moment later, so it
        is tried anew each time; the brakes stay on until memory has recovered.

        While others fill the machine, free buffers that an engine at work has back a moment later are no relief.
        """
        lent, climb = 0, self.ladder.climbs
        for rung in (Rung.CLEAR_CACHE, Rung.TRIM_PREFIXES, Rung.EVICT_IDLE, Rung.HOLD_PREFILLS, Rung.SLOW_PREFILLS):
            over = self._over_soft() + lent
            # memory may have recovered while a rung was awaited, and then nothing would let go of the next
            if over <= 0 or climb != self.ladder.climbs:
                return
            self._take(rung)
            try:
                lent += await self._act(rung, over, reason)
            # one that fails must not keep memory from the others
            except Exception:
                log.exception("memory.rung_broke", rung=rung.label)

    async def _act(self, rung: Rung, over: int, reason: str) -> int:
        """Take a rung; the bytes that were won only until an engine at work has them back."""
        match rung:
            case Rung.CLEAR_CACHE:
                freed = await self._reclaim(reason)
                return freed if self._others_press() else 0
            case Rung.TRIM_PREFIXES if await self.registry.trim_prefixes(over, reason):
                # what was trimmed is in MLX's buffers now; the trim itself is told already
                await self.engines.reclaim()
            case Rung.EVICT_IDLE:
                await self.registry.shed(over, reason)
            case Rung.HOLD_PREFILLS if not self.share.brake.hold:
                self.share.brake_to(Brake(hold=True))
            case Rung.SLOW_PREFILLS if not self.share.brake.slow:
                self.share.brake_to(Brake(hold=True, slow=True))
        return 0

    def _take(self, rung: Rung) -> None:
        if not self.ladder.take(rung):
            return
        self.counted(rung)
        reading = self.guard.reading()
        log.warning("memory.rung", rung=rung.label, bytes=reading.footprint.bytes, soft=reading.mark.bytes)

    async def _reclaim(self, reason: str) -> int:
        """Give MLX's free buffers and the heap's back; the bytes that were."""
        before = self.guard.reading().footprint.bytes
        await self.engines.reclaim()
        reading = self.guard.sample()
        freed = before - reading.footprint.bytes
        if freed >= WORTH_TELLING:
            soft = reading.mark.bytes
            inputs = {"footprint_bytes": reading.footprint.bytes, "soft_bytes": soft, "freed_bytes": freed}
            self.registry.decisions.add("trim", reason, inputs=inputs)
        return max(0, freed)

    def _others_press(self) -> bool:
        """Whether it is others who need the memory, and an engine is at work."""
        at_work = any(engine.stats().running for engine in self.registry.engines().values())
        return at_work and self.guard.soft_now < self.guard.limits.soft_bytes

    def _over_soft(self) -> int:
        reading = self.guard.reading(max_age=0.0)
        return reading.footprint.bytes - reading.mark.bytes
