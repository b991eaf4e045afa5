"""The life of a model as a table. A move that is not in it is a bug and raises, leaving the state as it was."""

from __future__ import annotations

import enum


class State(enum.StrEnum):
    """Where a model is; the public names."""

    UNLOADED = "unloaded"
    QUEUED = "queued"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    UNLOADING = "unloading"
    FAILED = "failed"


class Move(enum.StrEnum):
    """What happens to a model."""

    WANT = "want"
    FORGET = "forget"
    LOAD = "load"
    LOADED = "loaded"
    LOAD_FAILED = "load_failed"
    LOAD_CANCELLED = "load_cancelled"
    DRAIN = "drain"
    RESUME = "resume"
    UNLOAD = "unload"
    UNLOADED = "unloaded"
    LOST = "lost"


TABLE: dict[tuple[State, Move], State] = {
    (State.UNLOADED, Move.WANT): State.QUEUED,
    (State.FAILED, Move.WANT): State.QUEUED,
    (State.FAILED, Move.FORGET): State.UNLOADED,
    (State.QUEUED, Move.FORGET): State.UNLOADED,
    (State.QUEUED, Move.LOAD): State.LOADING,
    (State.LOADING, Move.LOADED): State.READY,
    (State.LOADING, Move.LOAD_FAILED): State.FAILED,
    (State.LOADING, Move.LOAD_CANCELLED): State.UNLOADED,
    (State.READY, Move.DRAIN): State.DRAINING,
    (State.READY, Move.UNLOAD): State.UNLOADING,
    (State.DRAINING, Move.RESUME): State.READY,
    (State.DRAINING, Move.UNLOAD): State.UNLOADING,
    (State.UNLOADING, Move.UNLOADED): State.UNLOADED,
    (State.UNLOADING, Move.LOST): State.FAILED,
}

# States in which a model holds memory, and in which it can be on its way to an answer.
RESIDENT = frozenset({State.LOADING, State.READY, State.DRAINING, State.UNLOADING})


class IllegalMove(RuntimeError):
    """A move that the table does not have."""

    def __init__(self, model: str, state: State, move: Move) -> None:
        super().__init__(f"model {model} is {state}: it cannot {move}")


def move(model: str, state: State, what: Move) -> State:
    """The state after a move. Raises IllegalMove."""
    try:
        return TABLE[state, what]
    except KeyError:
        raise IllegalMove(model, state, what) from None
