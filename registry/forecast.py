"""When models will be ready, from what loads and answers took. Pure functions over the planner's data; seconds."""

from __future__ import annotations

from collections.abc import Iterable

from mlxd.registry.pace import load_seconds, loading_left
from mlxd.registry.placement import in_the_end, place
from mlxd.registry.queue import blocked
from mlxd.registry.residency import Residency, Resident, Waiter
from mlxd.registry.states import State

# A client is told to come back after so many seconds when nothing is known, and within these bounds.
_UNKNOWN = 5.0
_SOONEST, _LATEST = 1.0, 300.0


class Forecast:
    """When models will be ready, as things are at `now` (monotonic seconds)."""

    def __init__(self, state: Residency, now: float) -> None:
        self._state = state
        self._now = now
        self._queue = blocked(state)
        self._room = self._until_room(self._queue[0]) if self._queue else 0.0

    def until_ready(self, name: str) -> float | None:
        """When a model that is wanted will be ready: the room for the next one, loads before it and its own.

        None when it is not known.
        """
        model, now = self._state.models[name], self._now
        if model.state is State.READY:
            return 0.0
        if model.state is State.LOADING and not model.cancelling:
            return loading_left(self._state, model, now)
        under_way = [other for other in self._state.models.values() if other.state is State.LOADING]
        loads = _sum(loading_left(self._state, other, now) for other in under_way)
        queued = _sum(load_seconds(self._state, self._state.models[before]) for before in self._up_to(name))
        if loads is None or queued is None or self._room is None:
            return None
        return self._room + (loads + queued) / self._state.policy.max_loading

    def retry_after(self, name: str | None = None) -> float:
        """When it is worth asking again, for a model or, without a name, for the next one that is served."""
        if name is None:
            name = self._queue[0].model if self._queue else self._next_loaded()
        ready = None if name is None else self.until_ready(name)
        return min(_LATEST, max(_SOONEST, _UNKNOWN if ready is None else ready))

    def _up_to(self, name: str) -> list[str]:
        queue = [waiter.model for waiter in self._queue]
        return queue[: queue.index(name) + 1] if name in queue else [*queue, name]

    def _next_loaded(self) -> str | None:
        return next((model.name for model in self._state.models.values() if model.state is State.LOADING), None)

    def _until_room(self, waiter: Waiter) -> float | None:
        """When there will be room for the next waiter's model: at once, or when those in its way have finished."""
        target = self._state.models[waiter.model]
        placement = place(self._state, target, self._now)
        if placement.fits or placement.victims:
            return 0.0
        if placement.soon:
            return max((residue.due - self._now for residue in self._state.remains.pending(self._now)), default=0.0)
        leaving = in_the_end(self._state, target, self._now)
        if not leaving:
            return None
        return _longest(self._until_gone(self._state.models[name], waiter) for name in leaving)

    def _until_gone(self, model: Resident, waiter: Waiter) -> float | None:
        """When a model can leave: after its minimum time and an answer or, as far as nothing is known of its answers,
        what is left of `max_wait`.
        """
        policy = self._state.policy
        fresh = max(0.0, model.loaded_at + policy.min_residency - self._now)
        if not model.leases and model.state is not State.LOADING:
            return fresh
        if model.answer_seconds is not None:
            return fresh + model.answer_seconds
        left = max(0.0, waiter.since + policy.max_wait - self._now)
        return fresh + left if 0.0 < left < float("inf") else None


def _sum(parts: Iterable[float | None]) -> float | None:
    known = list(parts)
    return None if None in known else sum(part for part in known if part is not None)


def _longest(parts: Iterable[float | None]) -> float | None:
    known = list(parts)
    return None if None in known else max((part for part in known if part is not None), default=0.0)
