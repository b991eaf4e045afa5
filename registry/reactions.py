"""What each event means by itself, before the planner's rules follow from it."""

from __future__ import annotations

from dataclasses import replace

from mlxd.registry import events as ev
from mlxd.registry.draft import Draft
from mlxd.registry.errors import (
    Failure,
    ModelLoadFailed,
    ModelNotLoaded,
    ModelTooLarge,
    ModelUnloaded,
    ModelWaitTimeout,
    ResidencyQueueFull,
    ShuttingDown,
)
from mlxd.registry.placement import can_ever_fit, free_bytes, room_victims
from mlxd.registry.residency import Purpose, Resident, RoomWanted, Trouble, Waiter
from mlxd.registry.states import RESIDENT, Move, State


def react(draft: Draft, event: ev.Event) -> None:  # noqa: C901, PLR0912 - one branch for each event
    """Change the draft by what one event says; what follows from it is the planner's."""
    match event:
        case ev.Wanted(waiter):
            _want(draft, waiter)
        case ev.Left(waiter_id):
            draft.drop_waiter(waiter_id)
        case ev.Released(name, generation):
            _release(draft, name, generation)
        case ev.LoadDone(name, generation):
            if draft.is_current(name, generation, State.LOADING):
                draft.move(name, Move.LOADED, trouble=None, loaded_at=draft.now, last_used=draft.now)
        case ev.LoadBroke():
            _load_broke(draft, event)
        case ev.UnloadDone(name, generation, clean):
            _unload_done(draft, name, generation, clean=clean)
        case ev.EngineDied(name, generation, message):
            _engine_died(draft, name, generation, message)
        case ev.UnloadWanted():
            _unload_wanted(draft, event)
        case ev.CancelLoadWanted(name):
            _cancel_load(draft, name)
        case ev.PolicyChanged():
            _policy_changed(draft, event)
        case ev.RoomNeeded():
            _room_needed(draft, event)
        case ev.Closing():
            draft.close(ShuttingDown())
        case ev.Tick():
            pass


def _want(draft: Draft, waiter: Waiter) -> None:
    """In order: closing · ready now · no autoload · backing off · never fits · queue full · queued."""
    model = draft.model(waiter.model)
    now = draft.now
    if draft.state.closing:
        draft.refuse(waiter, ShuttingDown())
        return
    if model.state is State.READY:
        draft.grant(waiter)
        return
    operator = waiter.purpose is Purpose.LOAD
    if not operator and not draft.state.policy.autoload and model.state not in RESIDENT:
        draft.refuse(waiter, ModelNotLoaded(model.name))
        return
    if model.trouble is not None and now < model.trouble.retry_at and not operator:
        draft.refuse(waiter, draft.load_failed(model))
        return
    if model.state not in RESIDENT and not can_ever_fit(draft.state, model):
        refuse_too_large(draft, waiter, model)
        return
    if not operator and len(draft.state.waiters) >= draft.state.policy.queue_size:
        draft.refuse(waiter, ResidencyQueueFull(draft.state.policy.queue_size))
        return
    if waiter.deadline is not None and waiter.deadline <= now:
        draft.refuse(waiter, ModelWaitTimeout(model.name, 0.0, 1.0))
        return
    draft.add_waiter(waiter)
    if model.state in (State.UNLOADED, State.FAILED):
        draft.move(model.name, Move.WANT)


def _release(draft: Draft, name: str, generation: int) -> None:
    model = draft.model(name)
    if model.generation == generation and model.leases > 0:
        draft.put(replace(model, leases=model.leases - 1, last_used=draft.now))


def _load_broke(draft: Draft, event: ev.LoadBroke) -> None:
    if not draft.is_current(event.model, event.generation, State.LOADING):
        return
    model = draft.model(event.model)
    attempts = model.trouble.attempts if model.trouble else 0
    if event.cancelled:
        draft.move(event.model, Move.LOAD_CANCELLED)
        draft.queue_again(event.model)  # for waiters that came after the cancel
        return
    trouble = Trouble(event.reason, event.message, attempts + 1, draft.now + draft.backoff(attempts))
    draft.move(event.model, Move.LOAD_FAILED, trouble=trouble)
    draft.decide("refuse", event.model, event.reason, inputs={"message": event.message, "attempts": attempts + 1})
    draft.refuse_all(event.model, draft.load_failed(draft.model(event.model)))


def _cancel_load(draft: Draft, name: str) -> None:
    if draft.model(name).state is not State.LOADING:
        return
    failure = Failure("cancelled", "the load was cancelled by an operator", 0, 0.0)
    draft.refuse_all(name, ModelLoadFailed(name, failure, 0.0))
    draft.decide("unload", name, "load_cancelled")
    draft.emit(ev.CancelLoad(name))


def _unload_done(draft: Draft, name: str, generation: int, *, clean: bool) -> None:
    if not draft.is_current(name, generation, State.UNLOADING):
        return
    trouble = draft.model(name).trouble
    if not clean:
        trouble = Trouble("stalled", "its engine did not close in time and was abandoned", 1, draft.now)
    draft.move(name, Move.UNLOADED if trouble is None else Move.LOST, leases=0, trouble=trouble)
    draft.queue_again(name)


def _engine_died(draft: Draft, name: str, generation: int, message: str) -> None:
    model = draft.model(name)
    if model.generation != generation or model.state not in (State.READY, State.DRAINING):
        return
    trouble = Trouble("crashed", message, 1, draft.now + draft.backoff(0))
    draft.put(replace(model, trouble=trouble))
    unload(draft, name, "abort", "engine_crashed")
    draft.refuse_all(name, draft.load_failed(draft.model(name)))


def _unload_wanted(draft: Draft, event: ev.UnloadWanted) -> None:
    model = draft.model(event.model)
    if model.state is State.QUEUED:
        draft.refuse_all(event.model, ModelUnloaded(event.model))
    if model.state is State.LOADING:
        _cancel_load(draft, event.model)
    if model.state not in (State.READY, State.DRAINING):
        return
    if event.force:
        unload(draft, event.model, "unload", "force")
        return
    if model.state is State.READY:
        draft.move(event.model, Move.DRAIN)
        if model.leases:
            draft.decide("drain", event.model, "operator", inputs={"leases": model.leases})
    until = event.until
    current = draft.model(event.model)
    if current.drain_until is None or (until is not None and until < current.drain_until):
        draft.put(replace(current, drain_until=until))


def _policy_changed(draft: Draft, event: ev.PolicyChanged) -> None:
    model = draft.model(event.model)
    pinned = model.pinned if event.pinned is None else event.pinned
    ttl = event.ttl if event.change_ttl else model.ttl
    draft.put(replace(model, pinned=pinned, ttl=ttl))


def _room_needed(draft: Draft, event: ev.RoomNeeded) -> None:
    victims = room_victims(draft.state, event.bytes, draft.now, partial=event.partial)
    inputs = {"needed_bytes": event.bytes, "free_bytes": free_bytes(draft.state)}
    for name in victims:
        draft.decide(
            "evict", name, event.reason, for_model=event.for_model, for_request=event.for_request, inputs=inputs
        )
        unload(draft, name)
    going = [m for m in draft.state.models.values() if m.state is State.UNLOADING]
    draft.want_room(RoomWanted(event.id, frozenset((m.name, m.generation) for m in going)))


def refuse_too_large(draft: Draft, waiter: Waiter, model: Resident) -> None:
    """Refuse a waiter whose model can never fit, with the numbers."""
    memory = draft.state.memory
    pinned = sum(m.committed for m in draft.state.models.values() if m.pinned and m.name != model.name)
    limit = memory.limit - memory.base - pinned
    draft.refuse(waiter, ModelTooLarge(model.name, model.need, limit, memory.limit_name))
    inputs = {"needed_bytes": model.need, "limit_bytes": limit, "limit": memory.limit_name, "pinned_bytes": pinned}
    draft.decide("refuse", model.name, "never_fits", for_request=waiter.request_id, inputs=inputs)


def unload(draft: Draft, name: str, kind: str | None = None, reason: str = "") -> None:
    """Start to unload a model; whoever still uses it is cut off. With `kind` it is recorded as a decision."""
    model = draft.model(name)
    if kind is not None:
        draft.decide(kind, name, reason, inputs={"leases": model.leases, "committed_bytes": model.committed})
    draft.move(name, Move.UNLOAD, leases=0, drain_until=None)
    draft.emit(ev.StartUnload(name, model.generation))
