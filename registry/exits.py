"""The ways out of memory, and out of the queue, that several rules share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mlxd.registry import events as ev
from mlxd.registry.deaths import outlived
from mlxd.registry.draft import Draft
from mlxd.registry.errors import MAX_LOADED, ModelTooLarge
from mlxd.registry.ledger import charge
from mlxd.registry.placement import Most
from mlxd.registry.residency import Resident, Waiter
from mlxd.registry.states import Move, State


def unload(
    draft: Draft, name: str, kind: str | None = None, reason: str = "", inputs: Mapping[str, object] | None = None
) -> None:
    """Start to unload a model; whoever still uses it is cut off. With `kind` it is recorded as a decision."""
    model = draft.model(name)
    if kind is not None:
        held = {"leases": model.leases, "committed_bytes": charge(draft.state, model)}
        draft.decide(kind, name, reason, inputs={**held, **(inputs or {})})
    deaths = outlived(model.deaths, model.loaded_at, draft.now)
    gone = model.moved(Move.UNLOAD, leases=0, keep_alive=None, drain_until=None, drain_for=None, retiring=False)
    draft.put(replace(gone, deaths=deaths))
    draft.emit(ev.StartUnload(name, model.generation))


def drain(draft: Draft, model: Resident, reason: str, until: float | None) -> None:
    """Admit nothing new to a model in memory, and unload it when its leases are over or at `until`, if that is sooner
    than what was asked for before.
    """
    if model.state is State.READY:
        draft.move(model.name, Move.DRAIN, drain_until=None)
        draft.decide("drain", model.name, reason, inputs={"leases": model.leases})
    limits = [limit for limit in (draft.model(model.name).drain_until, until) if limit is not None]
    until = min(limits, default=None)
    draft.put(replace(draft.model(model.name), drain_for=None, drain_until=until, retiring=False))


def cancel_load(draft: Draft, model: Resident, reason: str) -> None:
    """Ask a load to stop; once is enough."""
    if model.cancelling:
        return
    draft.put(replace(model, cancelling=True))
    draft.decide("unload", model.name, reason)
    draft.emit(ev.CancelLoad(model.name))


def refuse_in_trouble(draft: Draft, name: str, reason: str) -> None:
    """Decide to refuse those who wait for a model that failed."""
    model = draft.model(name)
    error = draft.load_failed(model)
    inputs = {"message": error.failure.message, "attempts": error.failure.attempts}
    draft.decide("refuse", name, reason, inputs=inputs)
    draft.refuse_all(name, error)


def never_fits(draft: Draft, waiter: Waiter, model: Resident) -> ModelTooLarge:
    """Decide to refuse a waiter whose model can never fit; the error has the numbers and names the limit."""
    memory, most = draft.state.memory, Most.of(draft.state)
    limit = memory.limit_name if most.places is None or most.places > 0 else MAX_LOADED
    inputs = {
        "needed_bytes": model.need,
        "limit_bytes": most.bytes,
        "limit": limit,
        "pinned_bytes": memory.limit - memory.base - most.bytes,
    }
    draft.decide("refuse", model.name, "never_fits", for_request=waiter.request_id, inputs=inputs)
    return ModelTooLarge(model.name, model.need, most.bytes, limit)
