"""Whether a model fits, and who would have to leave. Pure functions over the planner's data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mlxd.registry.residency import Residency, Resident
from mlxd.registry.states import RESIDENT, State


@dataclass(frozen=True, slots=True)
class Placement:
    """What a load would take: it fits as it is, or after these leave, or once what is leaving has left."""

    fits: bool
    victims: tuple[str, ...] = ()
    waits_for_unload: bool = False


def free_bytes(state: Residency, without: Iterable[str] = ()) -> int:
    """Bytes left for models if those in `without` were gone. The larger of books and measurement counts."""
    gone = set(without)
    charged = sum(model.committed for model in state.models.values() if model.name not in gone)
    released = sum(state.models[name].committed for name in gone)
    memory = state.memory
    return memory.limit - max(memory.base + charged, memory.measured - released)


def can_ever_fit(state: Residency, model: Resident) -> bool:
    """Whether the model fits once everything that may leave has left: pinned models stay."""
    pinned = sum(m.committed for m in state.models.values() if m.pinned and m.name != model.name)
    return model.need <= state.memory.limit - state.memory.base - pinned and not _slots_pinned(state, model)


def is_evictable(state: Residency, model: Resident, now: float) -> bool:
    """Ready, unused, unwanted, not pinned, and past its minimum time in memory."""
    return (
        model.state is State.READY
        and model.leases == 0
        and not model.pinned
        and now - model.loaded_at >= state.policy.min_residency
        and not any(waiter.model == model.name for waiter in state.waiters)
    )


def place(state: Residency, target: Resident, now: float) -> Placement:
    """How the target could be loaded now. In order: it fits · it fits after unloads under way · it fits after
    evicting the least recently used idle models · it does not.
    """
    if _fits(state, target, ()):
        return Placement(fits=True)
    leaving = [m.name for m in state.models.values() if m.state is State.UNLOADING]
    if leaving and _fits(state, target, leaving):
        return Placement(fits=False, waits_for_unload=True)
    victims: list[str] = []
    for model in idle_models(state, now):
        victims.append(model.name)
        if _fits(state, target, [*leaving, *victims]):
            return Placement(fits=False, victims=_without_spare(state, target, leaving, victims))
    return Placement(fits=False)


def idle_models(state: Residency, now: float) -> list[Resident]:
    """Models that may be evicted, least recently used first."""
    idle = [model for model in state.models.values() if is_evictable(state, model, now)]
    return sorted(idle, key=lambda model: (model.last_used, model.name))


def room_victims(state: Residency, needed: int, now: float, *, partial: bool) -> tuple[str, ...]:
    """Idle models whose memory covers `needed` bytes, least recently used first.

    All of them when they do not cover it and `partial` is set, else none.
    """
    victims: list[str] = []
    freed = sum(m.committed for m in state.models.values() if m.state is State.UNLOADING)
    for model in idle_models(state, now):
        if freed >= needed:
            break
        victims.append(model.name)
        freed += model.committed
    return tuple(victims) if freed >= needed or partial else ()


def _fits(state: Residency, target: Resident, without: Iterable[str]) -> bool:
    gone = set(without)
    if target.need > free_bytes(state, gone):
        return False
    limit = state.policy.max_loaded
    loaded = sum(1 for m in state.models.values() if m.state in RESIDENT and m.name not in gone)
    return limit == 0 or loaded < limit


def _without_spare(state: Residency, target: Resident, leaving: list[str], victims: list[str]) -> tuple[str, ...]:
    # A small old model that turned out not to be needed may stay: drop the most recently used ones first.
    needed = list(victims)
    for name in reversed(victims[:-1]):
        rest = [victim for victim in needed if victim != name]
        if _fits(state, target, [*leaving, *rest]):
            needed = rest
    return tuple(needed)


def _slots_pinned(state: Residency, model: Resident) -> bool:
    limit = state.policy.max_loaded
    pinned = sum(1 for m in state.models.values() if m.pinned and m.state in RESIDENT and m.name != model.name)
    return limit > 0 and pinned >= limit
