"""What each event means by itself, before the planner's rules follow from it."""

from __future__ import annotations

from dataclasses import replace

from mlxd.registry import events as ev
from mlxd.registry.crashes import died_loading, engine_died, reason_of, restarted
from mlxd.registry.deaths import CRASHED
from mlxd.registry.draft import Draft
from mlxd.registry.errors import (
    Failure,
    ModelLoadFailed,
    ModelNotLoaded,
    ModelRemoved,
    ModelUnloaded,
    ModelWaitTimeout,
    RegistryError,
    ResidencyQueueFull,
    ShuttingDown,
)
from mlxd.registry.exits import cancel_load, drain, never_fits, refuse_in_trouble, unload
from mlxd.registry.forecast import Forecast
from mlxd.registry.ledger import Ledger, charge
from mlxd.registry.pace import averaged
from mlxd.registry.placement import Most, names_in, room_victims
from mlxd.registry.queue import crowded_out
from mlxd.registry.reconfigure import reconfigure
from mlxd.registry.remains import leave, lose
from mlxd.registry.residency import KeepAlive, Purpose, Resident, RoomWanted, Trouble, Waiter
from mlxd.registry.states import RESIDENT, Move, State


def react(draft: Draft, event: ev.Event) -> None:  # noqa: C901, PLR0912 - one branch for each event
    """Change the draft by what one event says; what follows from it is the planner's. A Tick says nothing more."""
    match event:
        case ev.Wanted(waiter):
            _want(draft, waiter)
        case ev.Left(waiter_id):
            draft.take_waiters(lambda waiter: waiter.id == waiter_id)
        case ev.Released():
            _release(draft, event)
        case ev.LoadDone():
            _load_done(draft, event)
        case ev.LoadBroke():
            _load_broke(draft, event)
        case ev.UnloadDone():
            _unload_done(draft, event)
        case ev.EngineDied():
            engine_died(draft, event)
        case ev.UnloadWanted():
            _unload_wanted(draft, event)
        case ev.CancelLoadWanted(name):
            _cancel_load(draft, name)
        case ev.PolicyChanged():
            _policy_changed(draft, event)
        case ev.KeptAlive():
            _kept_alive(draft, event)
        case ev.Reconfigured(policy, models):
            reconfigure(draft, policy, models)
        case ev.RoomNeeded():
            _room_needed(draft, event)
        case ev.Closing():
            draft.close(ShuttingDown())


def _want(draft: Draft, waiter: Waiter) -> None:
    model = draft.find(waiter.model)
    if model is not None and model.state is State.READY and not draft.state.closing:
        draft.grant(waiter)
        return
    error = _refusal(draft, waiter, model)
    if error is not None:
        draft.refuse(waiter, error)
        return
    assert model is not None, "a model that is not known is refused"
    if (loser := crowded_out(draft.state, waiter)) is not None:
        _crowd_out(draft, loser)
    if loser is waiter:
        return
    draft.add_waiter(waiter)
    if waiter.purpose is Purpose.LOAD and model.trouble is not None:
        # an operator's load ends the back-off; whether it ends the trouble is seen then
        draft.put(replace(model, trouble=replace(model.trouble, retry_at=min(model.trouble.retry_at, draft.now))))
    if model.state in (State.UNLOADED, State.FAILED):
        draft.move(model.name, Move.WANT)


def _refusal(draft: Draft, waiter: Waiter, model: Resident | None) -> RegistryError | None:
    """Why a waiter is sent away at once. In order: closing · removed · no autoload · backing off · never fits · no
    time to wait.
    """
    if draft.state.closing:
        return ShuttingDown()
    if model is None or model.removed:
        return ModelRemoved(waiter.model)
    resident = model.state in RESIDENT
    operator = waiter.purpose is Purpose.LOAD
    if not operator and not draft.state.policy.autoload and not resident:
        return ModelNotLoaded(model.name)
    if model.trouble is not None and draft.now < model.trouble.retry_at and not operator:
        return draft.load_failed(model)
    if not resident and not Most.of(draft.state).fits(model):
        return never_fits(draft, waiter, model)
    if waiter.deadline is not None and waiter.deadline <= draft.now:
        return ModelWaitTimeout(model.name, 0.0, Forecast(draft.state, draft.now).retry_after(model.name))
    return None


def _crowd_out(draft: Draft, loser: Waiter) -> None:
    draft.take_waiters(lambda waiter: waiter.id == loser.id)
    wait = Forecast(draft.state, draft.now).retry_after()
    draft.refuse(loser, ResidencyQueueFull(draft.state.policy.queue_size, wait))


def _release(draft: Draft, event: ev.Released) -> None:
    model = draft.find(event.model)
    if model is None or model.generation != event.generation or model.leases == 0:
        return
    spent = model.answer_seconds if event.seconds is None else averaged(model.answer_seconds, event.seconds)
    draft.put(replace(model, leases=model.leases - 1, last_used=draft.now, answer_seconds=spent))


def _load_done(draft: Draft, event: ev.LoadDone) -> None:
    model = draft.current(event.model, event.generation, State.LOADING)
    if model is None:
        return
    seconds = draft.now - model.load_started
    draft.move(event.model, Move.LOADED, trouble=None, cancelling=False, loaded_at=draft.now, last_used=draft.now)
    if model.outdated:
        # what it took says nothing of what is configured now
        unload(draft, event.model, "unload", "load_cancelled")
        return
    weights = event.weights or model.weights
    draft.measured(weights, seconds)
    admitted = weights + model.kv_floor
    draft.put(replace(draft.model(event.model), weights=weights, admitted=admitted, load_seconds=seconds))
    if (spared := min(model.into, model.admitted - admitted)) > 0:
        leave(draft, model, spared)
    if model.cancelling and not draft.has_waiters(event.model):
        unload(draft, event.model, "unload", "load_cancelled")


def _load_broke(draft: Draft, event: ev.LoadBroke) -> None:
    model = draft.current(event.model, event.generation, State.LOADING)
    if model is None:
        return
    if event.cancelled or model.outdated or model.cancelling:
        # those who wait now came after the cancel: how it ended is nothing to them
        draft.move(event.model, Move.LOAD_CANCELLED, cancelling=False, outdated=False)
        _leave_memory(draft, model, model.admitted, clean=event.clean)
        draft.queue_again(event.model)
        return
    draft.put(died_loading(draft, model, event) if event.reason == CRASHED else _failed_again(draft, model, event))
    draft.move(event.model, Move.LOAD_FAILED)
    _leave_memory(draft, model, model.admitted, clean=event.clean)
    deaths = restarted(draft.model(event.model))
    refuse_in_trouble(draft, event.model, event.reason if deaths is None else reason_of(deaths))


def _failed_again(draft: Draft, model: Resident, event: ev.LoadBroke) -> Resident:
    attempts = model.trouble.attempts if model.trouble else 0
    trouble = Trouble(event.reason, event.message, attempts + 1, draft.now + draft.backoff(attempts))
    return replace(model, trouble=trouble)


def _cancel_load(draft: Draft, name: str) -> None:
    model = draft.find(name)
    if model is None or model.state is not State.LOADING:
        return
    failure = Failure("cancelled", "the load was cancelled by an operator", 0, 0.0)
    draft.refuse_all(name, ModelLoadFailed(name, failure, 0.0))
    cancel_load(draft, model, "load_cancelled")
    # whoever comes now waits for the next load, even if this one gets ready all the same
    draft.put(replace(draft.model(name), outdated=True))


def _unload_done(draft: Draft, event: ev.UnloadDone) -> None:
    model = draft.current(event.model, event.generation, State.UNLOADING)
    if model is None:
        return
    trouble = model.trouble  # of an engine that died
    if trouble is None and not event.clean:
        trouble = Trouble("stalled", "its engine did not close in time and was abandoned", 1, draft.now)
    left = Move.UNLOADED if trouble is None else Move.LOST
    draft.move(event.model, left, leases=0, trouble=trouble, outdated=False, cancelling=False)
    _leave_memory(draft, model, max(charge(draft.state, model), event.held), clean=event.clean)
    draft.queue_again(event.model)


def _leave_memory(draft: Draft, model: Resident, had: int, *, clean: bool) -> None:
    """A model is off the books; its engine gave back what it had, or was abandoned with it."""
    if clean:
        leave(draft, model, had)
    else:
        lose(draft, had)


def _unload_wanted(draft: Draft, event: ev.UnloadWanted) -> None:
    model = draft.find(event.model)
    if model is None:
        return
    model = replace(model, revives=False)
    draft.put(model)
    if model.state is State.QUEUED:
        draft.refuse_all(event.model, ModelUnloaded(event.model))
    if model.state is State.LOADING:
        _cancel_load(draft, event.model)
    if model.state not in (State.READY, State.DRAINING):
        return
    if event.force:
        unload(draft, event.model, "unload", "force")
        return
    drain(draft, model, "operator", event.until)


def _policy_changed(draft: Draft, event: ev.PolicyChanged) -> None:
    model = draft.find(event.model)
    if model is None:
        return
    pinned = model.pinned if event.pinned is None else event.pinned
    if event.change_ttl:
        model = replace(model, ttl=event.ttl, keep_alive=None)
    draft.put(replace(model, pinned=pinned, revives=model.revives and pinned))


def _kept_alive(draft: Draft, event: ev.KeptAlive) -> None:
    model = draft.find(event.model)
    if model is not None and model.state in (State.READY, State.DRAINING):
        draft.put(replace(model, keep_alive=KeepAlive(event.seconds)))


def _room_needed(draft: Draft, event: ev.RoomNeeded) -> None:
    victims = room_victims(draft.state, event.bytes, draft.now, partial=event.partial)
    inputs = {"needed_bytes": event.bytes, "free_bytes": Ledger.of(draft.state, draft.now).free}
    for name in victims:
        draft.decide(
            "evict", name, event.reason, for_model=event.for_model, for_request=event.for_request, inputs=inputs
        )
        unload(draft, name)
    going = {(name, draft.model(name).generation) for name in names_in(draft.state, State.UNLOADING)}
    going |= {(residue.model, residue.generation) for residue in draft.state.remains.pending(draft.now)}
    draft.want_room(RoomWanted(event.id, frozenset(going), settle=not event.partial))
