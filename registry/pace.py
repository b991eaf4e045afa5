"""How long loads take, from how long they took. Pure functions over the planner's data; seconds."""

from __future__ import annotations

from mlxd.registry.residency import Residency, Resident

# What a load is taken to cost before any was measured: only the proportions matter.
_SECONDS_PER_BYTE = 1e-9
# The weight of the newest measurement in an average.
_NEWEST = 0.3


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
