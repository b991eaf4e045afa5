"""Decides residency: a pure function from what is known and what happened to what is known now and what to do.

Nothing here reads a clock, logs, or touches an engine. Rules, in the order `_settle` applies them:

1. A waiter past its deadline is refused, and one whose model can never fit any more.
2. A model that was removed, or is configured otherwise than it was loaded, takes nothing new and drains. A pinned one
   whose engine died is wanted again once its back-off is over.
3. A drain that nobody needs any more, or of a model that is pinned or configured as before again, is taken back.
4. A ready model is granted to its waiters, oldest first.
5. A draining model without leases, or past its drain deadline, is unloaded.
6. A ready model that was idle for its ttl, or for as long as a client wants it kept, is unloaded.
7. The next waiter whose model is not resident decides what happens: its model is loaded if it fits, or others are
   evicted for it; if nothing can leave, it waits, and after `max_wait` the models in its way drain. `max_loading`
   models load at a time; a load that nobody waits for gives way.
8. While the next waiter waits for busy models, before its `max_wait`, a model that fits beside it may load.
9. A RoomNeeded is answered when the models evicted for it are gone and, for a prompt, what they left has settled.
"""

from __future__ import annotations

import math

from mlxd.registry import events as ev
from mlxd.registry.crashes import bring_back, forgive, leave_unpinned, restarted
from mlxd.registry.deaths import told
from mlxd.registry.draft import Draft
from mlxd.registry.errors import ModelWaitTimeout
from mlxd.registry.exits import cancel_load, never_fits, unload
from mlxd.registry.forecast import Forecast
from mlxd.registry.ledger import Ledger, charge
from mlxd.registry.pace import load_seconds, reload_seconds
from mlxd.registry.placement import Most, first_to_pass, in_the_way, place
from mlxd.registry.queue import blocked
from mlxd.registry.reactions import react
from mlxd.registry.reconfigure import retire
from mlxd.registry.remains import measure, use_up
from mlxd.registry.residency import Residency, Resident, Waiter
from mlxd.registry.states import Move, State

# Seconds after which memory is measured again while somebody waits for it and it may be free by then: more is in use
# than the books know of, or other programs need some. What a model leaves may come back late.
REMEASURE = 1.0


def plan(state: Residency, event: ev.Event, now: float) -> tuple[Residency, list[ev.Effect]]:
    """The state after an event at `now` (monotonic seconds), and what is to be done, in order."""
    draft = Draft(state, now)
    react(draft, event)
    measure(draft)
    _settle(draft)
    return draft.state, draft.effects


def next_deadline(state: Residency, now: float) -> float | None:
    """When, after `now`, the planner wants a Tick at the latest; None when nothing is due."""
    due = [waiter.deadline for waiter in state.waiters if waiter.deadline is not None]
    queue = blocked(state)
    for waiter in queue[:1]:
        due.append(waiter.since + state.policy.max_wait)
        if state.memory.present_limit < state.memory.limit or Ledger.of(state, now).unbooked:
            due.append(now + REMEASURE)
    pending = state.remains.pending(now) if queue or state.rooms else ()
    if pending:
        due += [now + REMEASURE, pending[0].due]
    for model in state.models.values():
        if model.state is State.DRAINING and model.drain_until is not None:
            due.append(model.drain_until)
        if model.revives and model.trouble is not None and not state.closing:
            due.append(model.trouble.retry_at)
        if model.state is not State.READY or model.pinned:
            continue
        if model.idle_limit is not None and not model.leases:
            due.append(model.last_used + model.idle_limit)
        if queue:
            due.append(model.loaded_at + state.policy.min_residency)
    return min((moment for moment in due if now < moment < math.inf), default=None)


def _settle(draft: Draft) -> None:
    _refuse_overdue(draft)
    retire(draft)
    leave_unpinned(draft)
    draft.forget_unwanted()
    bring_back(draft)
    # a model that is pinned stays after all, and may make another impossible, for which others drain
    _take_drains_back(draft)
    _refuse_impossible(draft)
    _open_ready(draft)
    _finish_drains(draft)
    _expire_idle(draft)
    _serve_queue(draft)
    # a load that starts needs no more room, and an idle model that drains is gone at once
    _open_ready(draft)
    _finish_drains(draft)
    draft.answer_rooms()


def _refuse_overdue(draft: Draft) -> None:
    overdue = draft.take_waiters(lambda waiter: waiter.deadline is not None and waiter.deadline <= draft.now)
    if not overdue:
        return
    forecast = Forecast(draft.state, draft.now)
    for waiter in overdue:
        waited = draft.now - waiter.since
        draft.refuse(waiter, ModelWaitTimeout(waiter.model, waited, forecast.retry_after(waiter.model)))
        inputs = {"waited_s": round(waited, 3), "state": draft.model(waiter.model).state}
        draft.decide("refuse", waiter.model, "wait_timeout", for_request=waiter.request_id, inputs=inputs)


def _open_ready(draft: Draft) -> None:
    _take_drains_back(draft)
    for waiter in draft.take_waiters(lambda waiter: draft.model(waiter.model).state is State.READY):
        draft.grant(waiter)


def _take_drains_back(draft: Draft) -> None:
    for model in draft.models(State.DRAINING):
        if model.outdated or model.removed:
            continue
        if model.retiring or (model.drain_for is not None and not _is_in_the_way(draft, model)):
            draft.move(model.name, Move.RESUME, drain_for=None, drain_until=None, retiring=False)


def _is_in_the_way(draft: Draft, model: Resident) -> bool:
    """Whether somebody still waits for the room of a model that drains for another."""
    wanted = draft.find(model.drain_for or "")
    queued = wanted is not None and wanted.state is State.QUEUED and draft.has_waiters(wanted.name)
    return queued and not model.pinned


def _finish_drains(draft: Draft) -> None:
    for model in draft.models(State.DRAINING):
        if model.leases == 0:
            unload(draft, model.name, "unload", "drained")
        elif model.drain_until is not None and model.drain_until <= draft.now:
            unload(draft, model.name, "abort", "drain_timeout")


def _expire_idle(draft: Draft) -> None:
    for model in draft.models(State.READY):
        if model.leases or model.pinned or model.idle_limit is None:
            continue
        if draft.now >= model.last_used + model.idle_limit:
            unload(draft, model.name, "expire", "ttl")


def _serve_queue(draft: Draft) -> None:
    while queue := blocked(draft.state):
        loading = draft.models(State.LOADING)
        if len(loading) >= draft.state.policy.max_loading:
            _cancel_unwanted(draft, loading)
            return
        first = queue[0]
        placement = place(draft.state, draft.model(first.model), draft.now)
        for name in placement.victims:
            _evict(draft, name, first)
        if placement.victims or placement.soon:
            return
        if placement.fits:
            _start_load(draft, first)
        elif not _wait_for_others(draft, queue):
            return
        # what loads is pinned, perhaps, and its room was drained for
        _refuse_impossible(draft)
        _take_drains_back(draft)


def _refuse_impossible(draft: Draft) -> None:
    """Pins or limits may have changed while somebody waited."""
    most = Most.of(draft.state)
    for model in draft.models(State.QUEUED):
        if most.fits(model):
            continue
        for waiter in draft.take_waiters_for(model.name):
            draft.refuse(waiter, never_fits(draft, waiter, model))
        draft.move(model.name, Move.FORGET, revives=False)


def _cancel_unwanted(draft: Draft, loading: list[Resident]) -> None:
    for model in loading:
        if not draft.has_waiters(model.name):
            cancel_load(draft, model, "unwanted")


def _wait_for_others(draft: Draft, queue: list[Waiter]) -> bool:
    """Nobody can leave for the first now. Those in its way drain once it has waited long enough; until then somebody
    further behind may load who takes nothing from it. Whether one does.
    """
    first, *others = queue
    _cancel_unwanted(draft, draft.models(State.LOADING))
    until = first.since + draft.state.policy.max_wait
    if draft.now >= until:
        _drain_in_the_way(draft, first)
        return False
    behind = {waiter.model: waiter for waiter in others}
    models = (draft.model(name) for name in behind)
    in_time = (model for model in models if draft.now + (load_seconds(draft.state, model) or 0.0) < until)
    passing = first_to_pass(draft.state, draft.model(first.model), first.since, in_time, draft.now)
    if passing is None:
        return False
    _start_load(draft, behind[passing.name])
    return True


def _start_load(draft: Draft, waiter: Waiter) -> None:
    forgive(draft, waiter.model)
    model = draft.model(waiter.model)
    inputs: dict[str, object] = {"needed_bytes": model.need, "free_bytes": Ledger.of(draft.state, draft.now).free}
    generation = draft.next_generation(waiter.key)
    draft.move(
        model.name,
        Move.LOAD,
        generation=generation,
        loaded_key=model.load_key,
        admitted=model.need,
        into=use_up(draft, model.need),
        leases=0,
        load_started=draft.now,
        revives=False,
    )
    if (deaths := restarted(model)) is None:
        draft.decide("load", model.name, waiter.purpose, for_request=waiter.request_id, inputs=inputs)
    else:
        inputs |= told(deaths)
        draft.decide("restart", model.name, waiter.purpose, for_request=waiter.request_id, inputs=inputs)
    draft.emit(ev.StartLoad(model.name, generation))


def _evict(draft: Draft, name: str, waiter: Waiter) -> None:
    target = draft.model(waiter.model)
    inputs = {
        "needed_bytes": target.need,
        "free_bytes": Ledger.of(draft.state, draft.now).free,
        "freed_bytes": charge(draft.state, draft.model(name)),
        "idle_s": round(draft.now - draft.model(name).last_used, 3),
        "reload_s": round(reload_seconds(draft.state, draft.model(name)), 3),
    }
    draft.decide("evict", name, "lru", for_model=target.name, for_request=waiter.request_id, inputs=inputs)
    unload(draft, name)


def _drain_in_the_way(draft: Draft, waiter: Waiter) -> None:
    """Close the models in a waiter's way to new work."""
    for name in in_the_way(draft.state, draft.model(waiter.model), draft.now):
        inputs = {"leases": draft.model(name).leases, "waited_s": round(draft.now - waiter.since, 3)}
        draft.move(name, Move.DRAIN, drain_until=None, drain_for=waiter.model)
        draft.decide("drain", name, "max_wait", for_model=waiter.model, for_request=waiter.request_id, inputs=inputs)
