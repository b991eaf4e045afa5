"""How long things will take, from how long they took. Pure functions over the planner's data; seconds."""

from __future__ import annotations

from mlxd.registry.queue import blocked
from mlxd.registry.residency import Residency, Resident
from mlxd.registry.states import State

# What a load is taken to cost before any was measured: only the proportions matter.
_SECONDS_PER_BYTE = 1e-9
# The weight of the newest measurement in an average.
_NEWEST = 0.3
# A client is told to come back after so many seconds when nothing is known, and within these bounds.
_UNKNOWN = 5.0
_SOONEST, _LATEST = 1.0, 300.0


def averaged(average: float | None, newest: float) -> float:
    """An exponentially weighted average that moves to the newest measurement."""
    return newest if average is None else average + _NEWEST * (newest - average)


def load_seconds(state: Residency, model: Resident) -> float | None:
    """What a load of the model takes: as long as its last one, else by its size; None when no load was measured."""
    if model.load_seconds is not None:
        return model.load_seconds
    return None if state.seconds_per_byte is None else model.weights * state.seconds_per_byte


def reload_seconds(state: Residency, model: Resident) -> float:
    """What it costs to load the model again, to be compared with others."""
    measured = load_seconds(state, model)
    return model.weights * _SECONDS_PER_BYTE if measured is None else measured


def loading_left(state: Residency, model: Resident, now: float) -> float | None:
    """What is left of a load in progress."""
    whole = load_seconds(state, model)
    return None if whole is None else max(0.0, whole - (now - model.load_started))


def until_ready(state: Residency, name: str, now: float) -> float | None:
    """When a model that is wanted will be ready: loads before it and its own, and answers that are in the way.

    None when it is not known, or when nobody waits for it.
    """
    model = state.models[name]
    if model.state is State.READY:
        return 0.0
    if model.state is State.LOADING and not model.cancelling:
        return loading_left(state, model, now)
    ahead = [waiter.model for waiter in blocked(state)]
    ahead = ahead[: ahead.index(name) + 1] if name in ahead else [*ahead, name]
    under_way = [other for other in state.models.values() if other.state is State.LOADING]
    parts = [loading_left(state, other, now) for other in under_way]
    parts += [load_seconds(state, state.models[queued]) for queued in ahead]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    return _until_room(state) + sum(known) / state.policy.max_loading


def retry_after(state: Residency, name: str, now: float) -> float:
    """When it is worth asking for a model again."""
    ready = until_ready(state, name, now)
    return min(_LATEST, max(_SOONEST, _UNKNOWN if ready is None else ready))


def _until_room(state: Residency) -> float:
    """How long answers usually take that a drain waits for."""
    draining = [model for model in state.models.values() if model.state is State.DRAINING and model.leases]
    return max((model.answer_seconds or 0.0 for model in draining), default=0.0)
