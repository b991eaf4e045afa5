"""Whether a model fits, and who would have to leave. Pure functions over the planner's data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mlxd.registry.ledger import NOTHING, Ledger, Reserve, charge
from mlxd.registry.pace import reload_seconds
from mlxd.registry.residency import Residency, Resident
from mlxd.registry.states import State
from mlxd.registry.victims import Candidate, choose


@dataclass(frozen=True, slots=True)
class Placement:
    """What a load would take: it fits as it is, or `soon`, once the room of those that leave or left is free, or after
    these leave.
    """

    fits: bool
    victims: tuple[str, ...] = ()
    soon: bool = False


@dataclass(frozen=True, slots=True)
class Most:
    """What can be made free at all: pinned models stay. Bytes, and places in memory, None for no bound."""

    bytes: int
    places: int | None

    @classmethod
    def of(cls, state: Residency) -> Most:
        """What the limit leaves beside the base and the pinned models, whatever other programs need at present."""
        memory, slots = state.memory, state.policy.max_loaded
        pinned = [charge(state, model) for model in state.models.values() if _stays(model)]
        return cls(memory.limit - memory.base - sum(pinned), slots - len(pinned) if slots else None)

    def fits(self, model: Resident) -> bool:
        """Whether a model that is not in memory fits once everything that may leave has left."""
        return model.need <= self.bytes and (self.places is None or self.places > 0)


def place(state: Residency, target: Resident, now: float) -> Placement:
    """How the target could be loaded now. In order: it fits · it fits once unloads under way have ended and settled ·
    it fits after evicting the cheapest set of idle models · it does not.
    """
    ledger = Ledger.of(state, now)
    if ledger.fits(target.need):
        return Placement(fits=True)
    short = ledger.short_without(target.need, names_in(state, State.UNLOADING))
    if short == NOTHING:
        return Placement(fits=False, soon=True)
    victims = choose(_candidates(state, ledger, evictable_models(state, now), now), short)
    return Placement(fits=False, victims=victims or ())


def in_the_way(state: Residency, target: Resident, now: float) -> tuple[str, ...]:
    """The ready models that must take no new requests for the target to fit in the end, beside those that are going
    already; none when even all of them are not enough.
    """
    ledger = Ledger.of(state, now)
    short = ledger.short_without(target.need, names_in(state, State.UNLOADING, State.DRAINING))
    ready = [model for model in state.models.values() if may_drain(state, model, now)]
    return choose(_candidates(state, ledger, ready, now), short) or ()


def in_the_end(state: Residency, target: Resident, now: float) -> tuple[str, ...]:
    """The models that have to leave for the target to fit, whenever they can: in use, fresh, draining or loading."""
    ledger = Ledger.of(state, now)
    short = ledger.short_without(target.need, names_in(state, State.UNLOADING))
    going = (State.LOADING, State.READY, State.DRAINING)
    models = [model for model in state.models.values() if model.state in going and not _stays(model)]
    return choose(_candidates(state, ledger, models, now), short) or ()


def first_to_pass(
    state: Residency, waiting: Resident, since: float, models: Iterable[Resident], now: float
) -> Resident | None:
    """The first that fits into what is free and leaves enough for one that has waited for others to leave `since`.

    Those who passed it before have their part already.
    """
    ledger = Ledger.of(state, now)
    charged = (state.models[name] for name in ledger.charges)
    movable = [model.name for model in charged if not _stays(model) and model.load_started <= since]
    for model in models:
        in_the_end = ledger.short_without(waiting.need, movable, beside=Reserve(model.need, 1))
        if ledger.fits(model.need) and in_the_end == NOTHING:
            return model
    return None


def idle_models(state: Residency) -> list[Resident]:
    """Models that nothing keeps in memory: ready, unused, unwanted and not pinned."""
    wanted = {waiter.model for waiter in state.waiters}
    ready = (model for model in state.models.values() if model.state is State.READY)
    return [model for model in ready if not model.leases and not model.pinned and model.name not in wanted]


def evictable_models(state: Residency, now: float) -> list[Resident]:
    """Idle models that are past their minimum time in memory."""
    return [model for model in idle_models(state) if may_drain(state, model, now)]


def may_drain(state: Residency, model: Resident, now: float) -> bool:
    """Whether a ready model may be asked to leave for another."""
    if model.state is not State.READY or model.pinned:
        return False
    return now >= model.loaded_at + state.policy.min_residency


def room_victims(state: Residency, needed: int, now: float, *, partial: bool) -> tuple[str, ...]:
    """The cheapest set of idle models whose memory covers `needed` bytes, beside that of unloads that are under way or
    have not settled.

    With `partial` the machine is short of memory: their minimum time does not count, and all of them leave when they
    do not cover it. Else none does.
    """
    ledger = Ledger.of(state, now)
    idle = idle_models(state) if partial else evictable_models(state, now)
    coming = ledger.pending + sum(ledger.charges[name] for name in names_in(state, State.UNLOADING))
    victims = choose(_candidates(state, ledger, idle, now), Reserve(max(0, needed - coming)))
    if victims is None:
        return tuple(model.name for model in idle) if partial else ()
    return victims


def names_in(state: Residency, *states: State) -> tuple[str, ...]:
    """The models in one of these states."""
    return tuple(model.name for model in state.models.values() if model.state in states)


def _stays(model: Resident) -> bool:
    return model.pinned and model.state in (State.LOADING, State.READY)


def _candidates(state: Residency, ledger: Ledger, models: Iterable[Resident], now: float) -> list[Candidate]:
    return [
        Candidate(model.name, ledger.charges[model.name], now - model.last_used, reload_seconds(state, model))
        for model in models
    ]
