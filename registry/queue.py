"""In which order those who wait are served, and who has no place in the queue. Pure functions."""

from __future__ import annotations

from collections import Counter

from mlxd.registry.residency import Purpose, Residency, Waiter
from mlxd.registry.states import State


def in_order(state: Residency) -> tuple[Waiter, ...]:
    """All waiters, the next one first.

    Within a key the oldest is first. Of several keys the one is first whose turn is the longest ago: the start of the
    last load for it, or the begin of its oldest wait if that came later. So a key with many wishes does not keep the
    others waiting.
    """
    turns: dict[str | None, tuple[float, bool]] = {}
    for waiter in state.waiters:
        served = state.served.get(waiter.key, waiter.since)
        turns.setdefault(waiter.key, (max(served, waiter.since), waiter.key in state.served))
    if len(turns) <= 1:
        return state.waiters
    return tuple(sorted(state.waiters, key=lambda waiter: turns[waiter.key]))


def blocked(state: Residency) -> list[Waiter]:
    """The first waiter of each model that is neither resident nor on its way, the next one first.

    Everybody who waits for one model is served by its one load.
    """
    first: dict[str, Waiter] = {}
    for waiter in in_order(state):
        if state.models[waiter.model].state is State.QUEUED:
            first.setdefault(waiter.model, waiter)
    return list(first.values())


def crowded_out(state: Residency, newcomer: Waiter) -> Waiter | None:
    """Who has no place once the newcomer is there; None when there is room for all. Operators need no place.

    1. A key that has its share of the places gets no more.
    2. One that has less takes the place of the youngest waiter of the key that has most.
    """
    size = state.policy.queue_size
    requests = [waiter for waiter in state.waiters if waiter.purpose is Purpose.LEASE]
    if newcomer.purpose is Purpose.LOAD or len(requests) < size:
        return None
    places = Counter(waiter.key for waiter in requests)
    share = size // len(places.keys() | {newcomer.key})
    greedy, most = places.most_common(1)[0]
    if places[newcomer.key] >= share or most <= share:
        return newcomer
    return next(waiter for waiter in reversed(requests) if waiter.key == greedy)
