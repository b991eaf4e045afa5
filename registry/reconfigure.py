"""What a changed configuration does to the planner's data: only what was removed or is loaded otherwise is touched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mlxd.registry.draft import Draft
from mlxd.registry.errors import ModelRemoved
from mlxd.registry.exits import cancel_load, drain
from mlxd.registry.residency import Policy, Resident
from mlxd.registry.states import RESIDENT, Move, State


def reconfigure(draft: Draft, policy: Policy, models: Sequence[Resident]) -> None:
    """Take over a policy and the full list of models.

    A model that is missing takes no more requests and leaves memory, then the books. One whose `load_key` changed is
    tried again if it had failed, however often its engine had died, and loads anew after what runs has finished; a
    change that is taken back in time is none. Of the others, what was measured stays.
    """
    draft.state = replace(draft.state, policy=policy)
    listed = {model.name for model in models}
    for model in list(draft.state.models.values()):
        if model.name not in listed:
            _remove(draft, model)
    for model in models:
        known = draft.find(model.name)
        draft.put(model if known is None else _updated(known, model))


def retire(draft: Draft) -> None:
    """Models that are not what is configured, or not configured at all, make their way out of memory."""
    until = draft.now + draft.state.policy.unload_timeout
    for model in [model for model in draft.state.models.values() if model.outdated or model.removed]:
        reason = "removed" if model.removed else "changed"
        if model.state is State.LOADING:
            cancel_load(draft, model, reason)
        elif model.state in (State.READY, State.DRAINING):
            wanted_gone = model.state is State.DRAINING and model.drain_for is None and not model.retiring
            drain(draft, model, reason, until)
            draft.put(replace(draft.model(model.name), retiring=not wanted_gone))
        elif model.removed and model.state not in RESIDENT:
            draft.forget(model.name)


def _remove(draft: Draft, model: Resident) -> None:
    draft.refuse_all(model.name, ModelRemoved(model.name))
    if model.state is State.QUEUED:
        draft.move(model.name, Move.FORGET)
    draft.put(replace(draft.model(model.name), removed=True, revives=False))


def _updated(known: Resident, configured: Resident) -> Resident:
    if not known.removed and _as_configured(known) == _as_configured(configured):
        return known
    changed = known.load_key != configured.load_key
    resident = known.state in (State.LOADING, State.READY, State.DRAINING)
    # a load that was asked to stop is of no use to anybody, whatever is configured
    model = replace(
        known,
        weights=configured.weights if changed else known.weights,
        kv_floor=configured.kv_floor,
        load_key=configured.load_key,
        pinned=configured.pinned,
        ttl=configured.ttl,
        keep_alive=known.keep_alive if configured.ttl == known.ttl else None,
        removed=False,
        outdated=resident and (known.cancelling or configured.load_key != known.loaded_key),
        trouble=None if changed else known.trouble,
        deaths=None if changed else known.deaths,
        revives=known.revives and configured.pinned,
        load_seconds=None if changed else known.load_seconds,
    )
    return model.moved(Move.FORGET) if changed and known.state is State.FAILED else model


def _as_configured(model: Resident) -> tuple[object, ...]:
    return model.load_key, model.kv_floor, model.pinned, model.ttl
