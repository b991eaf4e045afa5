"""What engines leave behind, from the moment they are gone until it is seen to be free or counts as free.

The books let go of a model when its engine is gone; what is measured may follow later. An allocator keeps pages for the
next load, and the system takes its time. So what a model was charged with becomes a residue:

1. It is never more than what is measured beyond the books: what is seen to be free is free.
2. For SETTLE seconds it counts as used, then as free.
3. A load uses it up, oldest first: its bytes are on the books now, and if it takes others after all they are seen.
4. What an abandoned engine had is not given back. It counts as used for as long as it is measured.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from mlxd.registry.draft import Draft
from mlxd.registry.residency import Remains, Residency, Resident, Residue
from mlxd.registry.states import RESIDENT, State

# Seconds until what an engine gave back counts as free though it is measured still. Systems give it back within a
# second or two; what is there after five is kept for the next load, and nothing but a load would use it.
SETTLE = 5.0

# What a model on its way out has given back already cannot be told from what it still has: as long as it is on the
# books, it takes nothing from what others left. What stays is its own residue later.
STAY = RESIDENT - {State.UNLOADING}


def measure(draft: Draft) -> None:
    """Keep no more than what is still measured."""
    remains = draft.state.remains
    if not remains.late and not remains.lost:
        return
    lost = min(remains.lost, max(0, _unheld(draft.state)))
    room = max(0, _beyond(draft.state, STAY) - lost)
    late = []
    for residue in remains.late:
        kept = min(residue.bytes, room)
        room -= kept
        if kept:
            late.append(residue if kept == residue.bytes else replace(residue, bytes=kept))
    _put(draft, Remains(tuple(late), lost))


def leave(draft: Draft, model: Resident, given_back: int) -> None:
    """A model's engine gave back so many bytes, which are not on the books any more.

    What is measured beyond all that is on the books, or was left before, is all that can be its own.
    """
    remains = draft.state.remains
    known = remains.lost + sum(residue.bytes for residue in remains.late)
    own = min(given_back, _beyond(draft.state, RESIDENT) - known)
    if own > 0:
        residue = Residue(model.name, model.generation, own, draft.now + SETTLE)
        _put(draft, replace(remains, late=(*_merged(remains, draft.now), residue)))


def lose(draft: Draft, kept: int) -> None:
    """An engine was abandoned with so many bytes."""
    remains = draft.state.remains
    _put(draft, replace(remains, lost=remains.lost + kept))


def use_up(draft: Draft, need: int) -> int:
    """A load of `need` bytes starts; how many of them others have left."""
    late, left = [], need
    for residue in draft.state.remains.late:
        used = min(residue.bytes, left)
        left -= used
        if used < residue.bytes:
            late.append(replace(residue, bytes=residue.bytes - used))
    _put(draft, replace(draft.state.remains, late=tuple(late)))
    return need - left


def _merged(remains: Remains, now: float) -> tuple[Residue, ...]:
    """The same with one residue for all that have settled: nobody waits for those by name."""
    settled = [residue for residue in remains.late if residue.due <= now]
    one = [replace(settled[-1], bytes=remains.settled(now))] if settled else []
    return (*one, *remains.pending(now))


def _put(draft: Draft, remains: Remains) -> None:
    draft.state = replace(draft.state, remains=remains)


def _beyond(state: Residency, states: Collection[State]) -> int:
    """What is measured beyond the models in these states."""
    models = (model for model in state.models.values() if model.state in states)
    return state.memory.measured - state.memory.base - sum(_used(state, model) for model in models)


def _used(state: Residency, model: Resident) -> int:
    """What a model is charged with, but for what was promised to its requests: that is not measured yet."""
    held = state.memory.held.get(model.name)
    return model.admitted if held is None else max(model.admitted, held.weights + held.kv)


def _unheld(state: Residency) -> int:
    """What is measured beyond what loaded models are known to hold: less than all of it is not lost for certain."""
    memory = state.memory
    loaded = (model for model in state.models.values() if model.state in (State.READY, State.DRAINING))
    held = (memory.held.get(model.name) for model in loaded)
    return memory.measured - memory.base - sum(one.weights + one.kv for one in held if one is not None)
