"""In which order those who wait are served, and who has no place in the queue. Pure functions."""

from __future__ import annotations

from collections import Counter

from mlxd.registry.residency import Purpose, Residency, Waiter
from mlxd.registry.states import State

_NEVER = float("-inf")


def in_order(state: Residency) -> tuple[Waiter, ...]:
    """All waiters, the next one first.

    Within a key the oldest is first. Of several keys the one is first that no load was started for the longest time,
    so that a key with many wishes does not keep the others waiting.
    """
    if len({waiter.key for waiter in state.waiters}) <= 1:
        return state.waiters
    return tuple(sorted(state.waiters, key=lambda waiter: state.served.get(waiter.key, _NEVER)))


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
    """Who has no place once the newcomer is there; None when the queue has room for all.

    A key that has its share of the places gets no more. One that has less takes the place of the youngest waiter of
    the key that has most.
    """
    size = state.policy.queue_size
    if newcomer.purpose is Purpose.LOAD or len(state.waiters) < size:
        return None
    requests = [waiter for waiter in state.waiters if waiter.purpose is Purpose.LEASE]
    places = Counter(waiter.key for waiter in requests)
    share = size // len(places.keys() | {newcomer.key})
    if places[newcomer.key] >= share or not requests:
        return newcomer
    greedy, most = places.most_common(1)[0]
    if most <= share:
        return newcomer
    return next(waiter for waiter in reversed(requests) if waiter.key == greedy)
