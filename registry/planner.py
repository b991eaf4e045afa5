"""Decides residency: a pure function from what is known and what happened to what is known now and what to do.

Nothing here reads a clock, logs, or touches an engine. Rules, in the order `_settle` applies them:

1. A waiter past its deadline is refused.
2. A ready model is granted to its waiters, oldest first.
3. A draining model without leases, or past its drain deadline, is unloaded.
4. A ready model that was idle for its ttl is unloaded.
5. The oldest waiter whose model is not resident decides what happens next: its model is refused if it can
   never fit, loaded if it fits, or others are evicted for it; if nothing can leave, it waits, and after
   `max_wait` the models in its way drain. One model loads at a time. Nobody overtakes it.
6. A RoomNeeded is answered when the models evicted for it are gone.
"""

from __future__ import annotations

import math

from mlxd.registry import events as ev
from mlxd.registry.draft import Draft
from mlxd.registry.errors import ModelWaitTimeout
from mlxd.registry.placement import can_ever_fit, free_bytes, place
from mlxd.registry.reactions import react, refuse_too_large, unload
from mlxd.registry.residency import Residency, Resident, Waiter
from mlxd.registry.states import Move, State


def plan(state: Residency, event: ev.Event, now: float) -> tuple[Residency, list[ev.Effect]]:
    """The state after an event at `now` (monotonic seconds), and what is to be done, in order."""
    draft = Draft(state, now)
    react(draft, event)
    _settle(draft)
    return draft.state, draft.effects


def next_deadline(state: Residency, now: float) -> float | None:
    """When, after `now`, the planner wants a Tick at the latest; None when nothing is due."""
    due: list[float] = []
    blocked = [w for w in state.waiters if state.models[w.model].state is State.QUEUED]
    due += [waiter.deadline for waiter in state.waiters if waiter.deadline is not None]
    due += [waiter.since + state.policy.max_wait for waiter in blocked[:1]]
    for model in state.models.values():
        if model.state is State.DRAINING and model.drain_until is not None:
            due.append(model.drain_until)
        if model.state is not State.READY or model.leases:
            continue
        if model.ttl is not None and not model.pinned:
            due.append(model.last_used + model.ttl)
        if blocked and state.policy.min_residency:
            due.append(model.loaded_at + state.policy.min_residency)
    return min((moment for moment in due if now < moment < math.inf), default=None)


def _settle(draft: Draft) -> None:
    _refuse_overdue(draft)
    _grant_ready(draft)
    _finish_drains(draft)
    _expire_idle(draft)
    draft.forget_unwanted()
    _serve_oldest(draft)
    draft.answer_rooms()


def _refuse_overdue(draft: Draft) -> None:
    for waiter in draft.state.waiters:
        if waiter.deadline is not None and waiter.deadline <= draft.now:
            draft.drop_waiter(waiter.id)
            waited = draft.now - waiter.since
            draft.refuse(waiter, ModelWaitTimeout(waiter.model, waited, max(1.0, waited)))
            inputs = {"waited_s": round(waited, 3), "state": draft.model(waiter.model).state}
            draft.decide("refuse", waiter.model, "wait_timeout", for_request=waiter.request_id, inputs=inputs)


def _grant_ready(draft: Draft) -> None:
    for waiter in draft.state.waiters:
        if draft.model(waiter.model).state is State.READY:
            draft.drop_waiter(waiter.id)
            draft.grant(waiter)


def _finish_drains(draft: Draft) -> None:
    for model in list(draft.state.models.values()):
        if model.state is not State.DRAINING:
            continue
        if model.leases == 0:
            unload(draft, model.name, "unload", "drained")
        elif model.drain_until is not None and model.drain_until <= draft.now:
            unload(draft, model.name, "abort", "drain_timeout")


def _expire_idle(draft: Draft) -> None:
    for model in list(draft.state.models.values()):
        if model.state is not State.READY or model.leases or model.pinned or model.ttl is None:
            continue
        if draft.now - model.last_used >= model.ttl:
            unload(draft, model.name, "expire", "ttl")


def _serve_oldest(draft: Draft) -> None:
    while (waiter := draft.oldest_blocked()) is not None:
        target = draft.model(waiter.model)
        if can_ever_fit(draft.state, target):
            break
        # pins or limits changed while it waited
        draft.drop_waiter(waiter.id)
        refuse_too_large(draft, waiter, target)
        draft.forget_unwanted()
    else:
        return
    loading = [m for m in draft.state.models.values() if m.state is State.LOADING]
    for model in loading:
        # a load that nobody waits for any more gives way to one that somebody does
        if not draft.has_waiters(model.name):
            draft.emit(ev.CancelLoad(model.name))
    if not loading:
        _place(draft, waiter, target)


def _place(draft: Draft, waiter: Waiter, target: Resident) -> None:
    placement = place(draft.state, target, draft.now)
    inputs = {"needed_bytes": target.need, "free_bytes": free_bytes(draft.state)}
    if placement.fits:
        generation = target.generation + 1
        draft.move(target.name, Move.LOAD, generation=generation, leases=0)
        draft.decide("load", target.name, waiter.purpose, for_request=waiter.request_id, inputs=inputs)
        draft.emit(ev.StartLoad(target.name, generation))
        return
    for name in placement.victims:
        idle = round(draft.now - draft.model(name).last_used, 3)
        draft.decide(
            "evict",
            name,
            "lru",
            for_model=target.name,
            for_request=waiter.request_id,
            inputs={**inputs, "idle_s": idle},
        )
        unload(draft, name)
    if placement.victims or placement.waits_for_unload:
        return
    if draft.now - waiter.since >= draft.state.policy.max_wait:
        _drain_in_the_way(draft, target, waiter)


def _drain_in_the_way(draft: Draft, target: Resident, waiter: Waiter) -> None:
    """Close the busy models to new work, least recently used first, until the target would fit."""
    busy = [m for m in draft.state.models.values() if m.state is State.READY and not m.pinned]
    busy.sort(key=lambda m: (m.leases > 0, m.last_used, m.name))
    coming = sum(m.committed for m in draft.state.models.values() if m.state in (State.DRAINING, State.UNLOADING))
    short = target.need - free_bytes(draft.state) - coming
    slots = _slots_short(draft.state)
    for model in busy:
        if short <= 0 and slots <= 0:
            return
        draft.move(model.name, Move.DRAIN, drain_until=None)
        inputs = {"leases": model.leases, "waited_s": round(draft.now - waiter.since, 3)}
        draft.decide(
            "drain", model.name, "max_wait", for_model=target.name, for_request=waiter.request_id, inputs=inputs
        )
        short -= model.committed
        slots -= 1


def _slots_short(state: Residency) -> int:
    limit = state.policy.max_loaded
    staying = sum(1 for m in state.models.values() if m.state in (State.LOADING, State.READY))
    return staying + 1 - limit if limit else 0
