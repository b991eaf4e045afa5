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


class Forecast:
    """When models will be ready, as things are at `now` (monotonic seconds)."""

    def __init__(self, state: Residency, now: float) -> None:
        self._state = state
        self._now = now
        self._queue = [waiter.model for waiter in blocked(state)]

    def until_ready(self, name: str) -> float | None:
        """When a model that is wanted will be ready: loads before it and its own, and answers that are in the way.

        None when it is not known.
        """
        model, now = self._state.models[name], self._now
        if model.state is State.READY:
            return 0.0
        if model.state is State.LOADING and not model.cancelling:
            return loading_left(self._state, model, now)
        under_way = [other for other in self._state.models.values() if other.state is State.LOADING]
        parts = [loading_left(self._state, other, now) for other in under_way]
        parts += [load_seconds(self._state, self._state.models[queued]) for queued in self._up_to(name)]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        return self._until_room() + sum(known) / self._state.policy.max_loading

    def retry_after(self, name: str | None = None) -> float:
        """When it is worth asking again, for a model or, without a name, for the next one that is served."""
        if name is None:
            name = self._queue[0] if self._queue else self._next_loaded()
        ready = None if name is None else self.until_ready(name)
        return min(_LATEST, max(_SOONEST, _UNKNOWN if ready is None else ready))

    def _up_to(self, name: str) -> list[str]:
        return self._queue[: self._queue.index(name) + 1] if name in self._queue else [*self._queue, name]

    def _next_loaded(self) -> str | None:
        return next((model.name for model in self._state.models.values() if model.state is State.LOADING), None)

    def _until_room(self) -> float:
        """How long answers usually take that a drain waits for."""
        draining = [model for model in self._state.models.values() if model.state is State.DRAINING and model.leases]
        return max((model.answer_seconds or 0.0 for model in draining), default=0.0)
