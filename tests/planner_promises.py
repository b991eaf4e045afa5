"""What the planner promises, as checks of one plan: its effects, the state it leaves, and when it wants to be told."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from planner_memory import charged, check_looks, check_memory, check_patience, fits_without

from mlxd.registry import events as ev
from mlxd.registry.errors import ModelTooLarge
from mlxd.registry.planner import next_deadline, plan
from mlxd.registry.residency import Purpose, Residency, Resident, Waiter
from mlxd.registry.states import RESIDENT, State

if TYPE_CHECKING:
    from planner_outside import Outside

ON_THE_WAY = frozenset({State.QUEUED, State.LOADING, State.DRAINING, State.UNLOADING})
# Later than anything that is ever due.
FAR = 1e7


def check_effects(outside: Outside, before: Residency, event: ev.Event, effects: list[ev.Effect]) -> None:
    """Each effect is right by itself; `outside` has planned the event and not done the effects yet."""
    after = outside.state
    leases = Counter(outside.leases.values())
    for effect in effects:
        match effect:
            case ev.StartLoad():
                _check_load(after, effect)
            case ev.StartUnload(name, generation):
                assert after.models[name].generation == generation
                _check_unload(before, after, event, name, leases=leases[name, generation], now=outside.now)
            case ev.Decide(kind="evict"):
                _check_eviction(before, after, effect, leases, outside.now)
            case ev.Decide(kind="drain", reason="max_wait", model=str(name)):
                assert not after.models[name].pinned, f"{name} is pinned and drains"
                assert _stayed(after, after.models[name], outside.now), f"{name} drains before its time"
            case ev.Grant(model=name, generation=generation, leased=leased):
                assert not after.closing, "nobody is granted a model while the daemon stops"
                model = after.models[name]
                assert model.generation == generation
                leases[name, generation] += leased
                kept = model.state in (State.READY, State.DRAINING)
                assert kept or not leased, f"{name} was taken from the request it was just granted to"
            case ev.Refuse(waiter_id, ModelTooLarge() as error):
                assert not _could_fit(after, after.models[error.model]), f"{waiter_id} was refused and could fit"
    _check_event(outside, before, event, effects)


def _check_event(outside: Outside, before: Residency, event: ev.Event, effects: list[ev.Effect]) -> None:
    """All that an event led to is right together."""
    after = outside.state
    if starts := [effect.model for effect in effects if isinstance(effect, ev.StartLoad)]:
        check_memory(outside.memory, after, starts, outside.now)
    if isinstance(event, ev.Wanted):
        _check_request(before, after, event, effects, outside.now)
    if isinstance(event, ev.RoomNeeded) and not event.partial:
        _check_room(after, event, effects, outside.now)


def check_state(outside: Outside) -> None:
    """What is planned and what is real agree; call it when the effects are done."""
    state = outside.state
    resident = {name: model for name, model in state.models.items() if model.state in RESIDENT}
    real = {name: load.generation for name, load in outside.loads.items()} | outside.engines | outside.unloads
    assert {name: model.generation for name, model in resident.items()} == real
    held = Counter(outside.leases.values())
    for model in state.models.values():
        in_use = model.state in (State.READY, State.DRAINING)
        assert in_use == (model.name in outside.engines)
        assert (model.state is State.LOADING) == (model.name in outside.loads)
        assert model.leases == (held[model.name, model.generation] if in_use else 0), f"leases of {model.name}"
        assert model.state is not State.FAILED or model.trouble is not None
        assert model.drain_until is None or model.state is State.DRAINING
        assert not model.revives or model.pinned, f"{model.name} is not pinned and comes back by itself"
    waiting = [waiter.id for waiter in state.waiters if waiter.purpose is not Purpose.PINNED]
    assert sorted(waiting) == sorted(outside.waiting), "each waiter waits once, or was answered"
    assert sorted(room.id for room in state.rooms) == sorted(outside.rooms), "each room is answered once"


def check_now(outside: Outside) -> None:
    """Nobody waits in vain."""
    state = outside.state
    wanted = {waiter.model for waiter in state.waiters}
    for name in wanted:
        assert state.models[name].state in ON_THE_WAY, f"somebody waits for {name}, {state.models[name].state}"
    for model in state.models.values():
        assert model.state is not State.QUEUED or model.name in wanted, f"{model.name} is queued for nobody"
    for waiter in state.waiters:
        own = waiter.purpose is Purpose.PINNED
        assert not own or state.models[waiter.model].pinned, f"{waiter.model} comes back and is not pinned"
        assert waiter.deadline is None or waiter.deadline > outside.now, f"{waiter.id} waits past its deadline"
    assert not (state.closing and state.waiters), "nobody waits while the daemon stops"
    check_patience(outside.memory, state, outside.now)
    check_looks(state, outside.now)


def check_time(state: Residency, now: float) -> None:
    """The planner has done all it can do now, and nothing more until the moment it names."""
    due = next_deadline(state, now)
    assert due is None or due > now
    for moment in (now, now + FAR if due is None else (now + due) / 2):
        if moment == due:  # there is no number between now and then
            return
        after, effects = plan(state, ev.Tick(), moment)
        assert not effects, f"left undone until {moment - now:g} s later, with {due} named: {effects}"
        assert after == state, f"left undone until {moment - now:g} s later, with {due} named"


def check_stale(state: Residency, event: ev.Event, now: float) -> None:
    """An event of the past changes nothing that the time does not."""
    after, effects = plan(state, event, now)
    alone, due = plan(state, ev.Tick(), now)
    # errors are equal to themselves only
    assert (after, list(map(repr, effects))) == (alone, list(map(repr, due))), f"{event} is stale and had an effect"


def _check_load(after: Residency, effect: ev.StartLoad) -> None:
    model = after.models[effect.model]
    assert model.state is State.LOADING
    assert effect.generation == model.generation
    assert model.admitted == model.need, "a load was let in with another size than it has"
    resident = [m for m in after.models.values() if m.state in RESIDENT]
    limit = after.policy.max_loaded
    assert limit == 0 or len(resident) <= limit, "more models than may be"
    loading = [m for m in resident if m.state is State.LOADING]
    assert len(loading) <= after.policy.max_loading, "more loads at once than may be"


def _check_unload(before: Residency, after: Residency, event: ev.Event, name: str, *, leases: int, now: float) -> None:
    model = after.models[name]
    assert model.state is State.UNLOADING
    forced = isinstance(event, ev.EngineDied) or (isinstance(event, ev.UnloadWanted) and event.force)
    if forced and event.model == name:
        return
    made_room = before.models[name].drain_for is not None and not (model.outdated or model.removed)
    assert not (model.pinned and made_room), f"{name} is pinned and made room"
    bounds = [before.models[name].drain_until]
    if isinstance(event, ev.UnloadWanted) and event.model == name:
        bounds.append(event.until)
    overdue = any(until is not None and until <= now for until in bounds)
    assert overdue or not leases, f"{name} is unloaded under its leases"


def _check_eviction(
    before: Residency, after: Residency, effect: ev.Decide, leases: Counter[tuple[str, int]], now: float
) -> None:
    assert effect.model is not None
    model = after.models[effect.model]
    assert model.state is State.UNLOADING
    assert not model.pinned, f"{model.name} is pinned and was evicted"
    assert not leases[model.name, model.generation], f"{model.name} is in use and was evicted"
    # a machine that is short of memory does not wait
    assert effect.reason == "memory_soft" or _stayed(after, model, now), f"{model.name} was evicted before its time"
    if effect.reason == "lru":
        assert effect.for_model is not None
        target = after.models[effect.for_model]
        leaving = {m.name for m in after.models.values() if m.state is State.UNLOADING}
        assert fits_without(after, target, leaving, now), f"{model.name} was evicted and it is not enough"
        left_before = {name for name in leaving if before.models[name].state is State.UNLOADING}
        assert not fits_without(after, target, left_before, now), f"{model.name} was evicted for bytes that come anyway"


def _check_request(before: Residency, after: Residency, event: ev.Wanted, effects: list[ev.Effect], now: float) -> None:
    waiter = event.waiter
    wanted = before.models.get(waiter.model)
    if wanted is not None and wanted.state is State.READY and not before.closing:
        granted = {effect.waiter_id for effect in effects if isinstance(effect, ev.Grant)}
        assert waiter.id in granted, f"{waiter.model} is ready and {waiter.id} was not granted it"
    if waiter.id in {effect.waiter_id for effect in effects if isinstance(effect, ev.Refuse)}:
        alone, _ = plan(before, ev.Tick(), now)
        waited = _after_a_moment_in_the_queue(alone, after, waiter, now)
        assert after in (alone, waited), "a request that is refused changes nothing else"


def _after_a_moment_in_the_queue(state: Residency, after: Residency, waiter: Waiter, now: float) -> Residency:
    """The same when the one that was refused was in the queue until another load began: a model that had failed keeps
    its trouble and not its state, nor its back-off if it was an operator; a key that waited keeps its turn.
    """
    model = state.models.get(waiter.model)
    models = dict(state.models)
    if model is not None and model.state is State.FAILED:
        model = models[waiter.model] = replace(model, state=State.UNLOADED)
    if model is not None and model.trouble is not None and waiter.purpose is Purpose.LOAD:
        retry_at = min(model.trouble.retry_at, now)
        models[waiter.model] = replace(model, trouble=replace(model.trouble, retry_at=retry_at))
    return replace(state, models=models, served=after.served)


def _check_room(after: Residency, event: ev.RoomNeeded, effects: list[ev.Effect], now: float) -> None:
    evicted = [e for e in effects if isinstance(e, ev.Decide) and e.kind == "evict" and e.reason == event.reason]
    leaving = sum(charged(after, m) for m in after.models.values() if m.state is State.UNLOADING)
    coming = sum(residue.bytes for residue in after.remains.pending(now))
    assert not evicted or leaving + coming >= event.bytes, "models left and it was not enough"


def _could_fit(state: Residency, model: Resident) -> bool:
    """Whether there is room for a model once all have left that may: pinned ones that are not leaving stay."""
    staying = [m for m in state.models.values() if m.pinned and m.state in (State.LOADING, State.READY)]
    others = [m for m in staying if m.name != model.name]
    room = state.memory.limit - state.memory.base - sum(charged(state, m) for m in others)
    limit = state.policy.max_loaded
    return model.need <= room and (limit == 0 or len(others) < limit)


def _stayed(state: Residency, model: Resident, now: float) -> bool:
    return now >= model.loaded_at + state.policy.min_residency
