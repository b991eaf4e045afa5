"""What is done when memory gets short: the guard says when, this gives it back."""

from __future__ import annotations

from dataclasses import dataclass

from mlxd.engines.errors import FootprintExceeded
from mlxd.engines.lanes import LanePool
from mlxd.memory.crossing import CeilingEvent, RecoveredEvent, SoftEvent
from mlxd.memory.guard import MemoryGuard
from mlxd.registry.registry import ModelRegistry

# Bytes that a trim must free to be a decision: above the soft limit one is tried every few seconds.
WORTH_TELLING = 1_000_000


@dataclass(frozen=True, slots=True)
class MemoryRelief:
    """The guard's three callbacks."""

    guard: MemoryGuard
    registry: ModelRegistry
    lanes: LanePool

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
        self.registry.abort_all(error, "memory_ceiling", inputs)
        await self._get_below_soft("memory_ceiling")

    async def on_recovered(self, event: RecoveredEvent) -> None:
        """The guard has logged it; nothing was taken away that would have to be given back."""

    async def _get_below_soft(self, reason: str) -> None:
        """MLX's free buffers go first, then kept prompt prefixes, idle models only for what is still missing."""
        over = await self._reclaim(reason)
        if over > 0 and await self.registry.trim_prefixes(over, reason):
            # what was trimmed is in MLX's buffers now; the trim itself is told already
            await self.lanes.reclaim()
            over = self._over_soft()
        if over > 0:
            await self.registry.shed(over, reason)

    async def _reclaim(self, reason: str) -> int:
        """Give MLX's free buffers back; the bytes that are still over the soft limit."""
        before = self.guard.sample().footprint.bytes
        await self.lanes.reclaim()
        over = self._over_soft()
        soft = self.guard.limits.soft_bytes
        freed = before - (soft + over)
        if freed >= WORTH_TELLING:
            inputs = {"footprint_bytes": soft + over, "soft_bytes": soft, "freed_bytes": freed}
            self.registry.decisions.add("trim", reason, inputs=inputs)
        return over

    def _over_soft(self) -> int:
        return self.guard.sample().footprint.bytes - self.guard.limits.soft_bytes
