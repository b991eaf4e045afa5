"""What follows when an engine dies.

1. After the first death in a row the model may be loaded again at once, and those who wait for it go on waiting: only
   what ran is lost. Not so when it died in its load, which may never succeed.
2. After each further one it backs off like after a failed load, and nobody waits any more.
3. After QUARANTINE deaths it backs off for the longest time.
4. A pinned model is loaded again by itself when its back-off is over, but not in quarantine.
5. A death is nothing to a model that is configured otherwise than its engine was.
"""

from __future__ import annotations

from dataclasses import replace

from mlxd.registry import events as ev
from mlxd.registry.deaths import CRASHED, Deaths, describe, one_more, outlived, told
from mlxd.registry.draft import Draft
from mlxd.registry.exits import refuse_in_trouble, unload
from mlxd.registry.residency import Purpose, Resident, Trouble, Waiter
from mlxd.registry.states import Move, State


def engine_died(draft: Draft, event: ev.EngineDied) -> None:
    """A loaded model's engine is no more: it is closed, and with it ends what ran."""
    model = draft.current(event.model, event.generation, State.READY, State.DRAINING)
    if model is None:
        return
    known = outlived(model.deaths, model.loaded_at, draft.now)
    deaths = one_more(known, event.facts, event.suspects, draft.now)
    unload(draft, event.model, "abort", "engine_crashed", told(deaths))
    if model.outdated or model.removed:  # 5
        return
    # one that drains is wanted gone
    revives = model.pinned and model.state is State.READY
    wait = _wait(draft, deaths, free=1)
    draft.put(_with_death(draft, draft.model(event.model), deaths, event.message, wait, revives=revives))
    if deaths.count > 1:  # 1, 2
        refuse_in_trouble(draft, event.model, reason_of(deaths))


def died_loading(draft: Draft, model: Resident, event: ev.LoadBroke) -> Resident:
    """The model with this death of the engine that was to load it."""
    deaths = one_more(model.deaths, event.facts, (), draft.now)
    wait = _wait(draft, deaths, free=0)
    return _with_death(draft, model, deaths, event.message, wait, revives=model.pinned)


def reason_of(deaths: Deaths) -> str:
    """Why nobody is served after these deaths, as a decision says it."""
    return "quarantined" if deaths.quarantined else CRASHED


def forgive(draft: Draft, name: str) -> None:
    """A load starts: one that an operator waits for is no restart, and what was before does not count any more."""
    if any(waiter.model == name and waiter.purpose is Purpose.LOAD for waiter in draft.state.waiters):
        draft.put(replace(draft.model(name), deaths=None))


def restarted(model: Resident) -> Deaths | None:
    """The deaths after which a load of the model brings it back; None when its next load is an ordinary one."""
    crashed = model.trouble is not None and model.trouble.reason == CRASHED
    return model.deaths if crashed else None


def leave_unpinned(draft: Draft) -> None:
    """Wait no more for models that are not pinned any more."""
    draft.take_waiters(lambda waiter: waiter.purpose is Purpose.PINNED and not draft.model(waiter.model).pinned)


def bring_back(draft: Draft) -> None:
    """Wait for the pinned models whose back-off is over."""
    if draft.state.closing:
        return
    for model in draft.models(State.UNLOADED, State.FAILED):
        if model.revives and (model.trouble is None or model.trouble.retry_at <= draft.now):
            # the numbers of others are positive, and no load of a model dies twice
            draft.add_waiter(Waiter(-model.generation, model.name, draft.now, Purpose.PINNED))
            draft.move(model.name, Move.WANT)


def _wait(draft: Draft, deaths: Deaths, *, free: int) -> float:
    """Seconds until the next try, none after so many `free` deaths."""
    if deaths.quarantined:
        return draft.state.policy.max_backoff
    return draft.backoff(deaths.count - free - 1) if deaths.count > free else 0.0


def _with_death(draft: Draft, model: Resident, deaths: Deaths, said: str, wait: float, *, revives: bool) -> Resident:
    trouble = Trouble(CRASHED, describe(model.name, deaths, said), deaths.count, draft.now + wait)
    return replace(model, trouble=trouble, deaths=deaths, revives=revives and not deaths.quarantined)
