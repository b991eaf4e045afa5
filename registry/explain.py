"""What would happen if a model were asked for now: the planner's own answer to a wish that is then taken back."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from itertools import takewhile

from mlxd.registry import events as ev
from mlxd.registry.errors import ModelLoadFailed, ModelNotLoaded, ModelRemoved, ModelTooLarge, RegistryError
from mlxd.registry.forecast import Forecast
from mlxd.registry.ledger import Ledger
from mlxd.registry.placement import in_the_end, names_in
from mlxd.registry.planner import plan
from mlxd.registry.queue import blocked
from mlxd.registry.residency import Purpose, Residency, Resident, Waiter
from mlxd.registry.states import RESIDENT, State

# No wait has this number.
_NOBODY = 0


class Verdict(enum.StrEnum):
    """What comes of asking for a model; the public names."""

    READY = "ready"
    LOADS = "loads"
    LOADS_AFTER_EVICTION = "loads_after_eviction"
    WAITS = "waits"
    NEVER_FITS = "never_fits"
    BACKING_OFF = "backing_off"
    AUTOLOAD_OFF = "autoload_off"


@dataclass(frozen=True, slots=True)
class Blocker:
    """A model that cannot leave, and why: pinned, leased or min_residency."""

    id: str
    why: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The way to a model: bytes that its load needs and that are free, the models that would be evicted, those that it
    would have to wait for, those that cannot leave, and the seconds until it is ready, None when that is not known.

    Where other machines may answer too, `order` says who is asked, by the names of peers; "here" is this one.
    """

    model: str
    verdict: Verdict
    needed_bytes: int
    free_bytes: int
    evicts: tuple[str, ...] = ()
    waits_for: tuple[str, ...] = ()
    blocked_by: tuple[Blocker, ...] = ()
    eta_s: float | None = None
    order: tuple[str, ...] = ()


def explain(state: Residency, name: str, now: float, *, operator: bool = False) -> Plan:
    """The plan for a request, or for an operator's load, at `now` (monotonic seconds). Raises ModelRemoved."""
    model = state.models.get(name)
    if model is None or model.removed:
        raise ModelRemoved(name)
    purpose = Purpose.LOAD if operator else Purpose.LEASE
    # the queue's bound is no matter of the model
    roomy = replace(state, policy=replace(state.policy, queue_size=len(state.waiters) + 1))
    after, effects = plan(roomy, ev.Wanted(Waiter(_NOBODY, name, now, purpose)), now)
    verdict = _verdict(name, after, effects)
    plain = Plan(name, verdict, model.need, Ledger.of(state, now).free)
    if verdict in (Verdict.NEVER_FITS, Verdict.WAITS):
        plain = replace(plain, blocked_by=_blockers(state, name, now))
    if verdict is Verdict.WAITS:
        plain = replace(plain, waits_for=_waits_for(after, name, now))
    if verdict in (Verdict.NEVER_FITS, Verdict.BACKING_OFF, Verdict.AUTOLOAD_OFF):
        return plain
    eta = Forecast(after, now).until_ready(name)
    return replace(plain, evicts=_evicted(effects, name), eta_s=None if eta is None else round(eta, 3))


_REFUSED: dict[type[RegistryError], Verdict] = {
    ModelLoadFailed: Verdict.BACKING_OFF,
    ModelNotLoaded: Verdict.AUTOLOAD_OFF,
    ModelTooLarge: Verdict.NEVER_FITS,
}


def _verdict(name: str, after: Residency, effects: list[ev.Effect]) -> Verdict:
    for effect in effects:
        if isinstance(effect, ev.Refuse) and effect.waiter_id == _NOBODY:
            return _REFUSED.get(type(effect.error), Verdict.WAITS)
        if isinstance(effect, ev.Grant) and effect.waiter_id == _NOBODY:
            return Verdict.READY
    if after.models[name].state is State.LOADING and not after.models[name].cancelling:
        return Verdict.LOADS
    return Verdict.LOADS_AFTER_EVICTION if _evicted(effects, name) else Verdict.WAITS


def _evicted(effects: list[ev.Effect], name: str) -> tuple[str, ...]:
    evictions = [effect for effect in effects if isinstance(effect, ev.Decide) and effect.kind == "evict"]
    return tuple(effect.model for effect in evictions if effect.for_model == name and effect.model is not None)


def _waits_for(after: Residency, name: str, now: float) -> tuple[str, ...]:
    """Itself while it leaves, loads under way, those before it in the queue, those that leave, those in use. Nobody
    when it is only memory that it waits for: what left a moment ago, or what other programs need.
    """
    if after.models[name].state in (State.LOADING, State.DRAINING, State.UNLOADING):
        return (name,)
    before = takewhile(lambda model: model != name, (waiter.model for waiter in blocked(after)))
    leaving = names_in(after, State.DRAINING, State.UNLOADING)
    under_way = (*names_in(after, State.LOADING), *before, *leaving)
    if under_way or not in_the_end(after, after.models[name], now):
        return under_way
    return tuple(model.name for model in after.models.values() if model.leases and not model.pinned)


def _blockers(state: Residency, name: str, now: float) -> tuple[Blocker, ...]:
    found = [(model.name, _why_it_stays(state, model, now)) for model in state.models.values() if model.name != name]
    return tuple(Blocker(other, why) for other, why in found if why is not None)


def _why_it_stays(state: Residency, model: Resident, now: float) -> str | None:
    if model.state not in RESIDENT or model.state is State.UNLOADING:
        return None
    if model.pinned:
        return "pinned"
    if model.leases:
        return "leased"
    fresh = model.state is State.READY and now < model.loaded_at + state.policy.min_residency
    return "min_residency" if fresh else None
