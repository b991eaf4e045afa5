"""What engines may take: the guard's measurements and the registry's books in the terms of a MemoryShare."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from mlxd.engines.memory_share import MemoryShare
from mlxd.memory.guard import MemoryGuard
from mlxd.registry.registry import ModelRegistry

# Of the ceiling, what running sequences may never plan with: between two measurements they go on.
CEILING_MARGIN = 1 / 32
# Seconds for which a measurement serves several looks. A burst of prompts is looked at one by one, and measuring takes
# most of a millisecond beside work; what has started in so short a time is in the books of what is promised.
LOOK_AGE = 0.005


def memory_share(guard: MemoryGuard) -> MemoryShare:
    """Prompts start below the soft limit, running sequences may grow half of the way from there to the ceiling.

    Looks measure, but for those that follow each other at once: an old reading does not know what has started since.
    """

    def headroom() -> int:
        return guard.headroom(LOOK_AGE)

    def growth_room() -> int:
        limits = guard.limits
        mark = min((limits.soft_bytes + limits.ceiling_bytes) // 2, int(limits.ceiling_bytes * (1 - CEILING_MARGIN)))
        return mark - guard.reading(LOOK_AGE).footprint.in_use

    return MemoryShare(headroom, growth_room, lambda: guard.limits.soft_limit)


@dataclass(frozen=True, slots=True)
class MostForPrompts:
    """Bytes that a prompt could have if everything else that may leave had left; `base` is what is no model's,
    `processes` what those of these models take beside them.
    """

    guard: MemoryGuard
    base: Callable[[], int]
    processes: Callable[[Collection[str]], int]
    registry: Callable[[], ModelRegistry]

    def of(self, name: str) -> Callable[[], int | None]:
        """For prompts of one model: beside its own weights, and pinned models. Call it on the event loop."""

        def most() -> int:
            staying = self.registry().staying_for(name)
            held = sum(staying.values()) + self.processes(staying)
            return self.guard.limits.soft_bytes - self.base() - held

        return most


@dataclass(frozen=True, slots=True)
class LoadReserve:
    """Keeps prompts from taking what models that are being loaded have not read yet."""

    share: MemoryShare
    registry: ModelRegistry

    def on_models(self, names: Collection[str]) -> None:
        """These models changed: a load began, got on or ended."""
        for name in names:
            self.share.reserve(f"load of {name}", self.registry.unread_bytes(name))
