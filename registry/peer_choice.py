"""Where a request goes when several machines have its model: pure functions over what is known of them."""

from __future__ import annotations

import enum
import zlib
from dataclasses import dataclass


class Standing(enum.IntEnum):
    """How far a model is from answering; the lower, the sooner."""

    READY = 0
    LOADS_HERE = 1
    LOADS_THERE = 2


@dataclass(frozen=True, slots=True)
class Option:
    """One machine that can answer: a peer by its name, None for this daemon.

    `waiting` counts requests that wait there: for the model if it is ready, else for any, as its load comes after those
    of others. `first_token_s` is how long first tokens took lately, None before any; of a load it says nothing.
    `spread` is what `spread_of` gives.
    """

    peer: str | None
    standing: Standing
    priority: int = 0
    waiting: int = 0
    first_token_s: float | None = None
    spread: int = 0


def spread_of(peer: str, model: str) -> int:
    """A number by which models that are nowhere yet are spread over peers, the same in each daemon (rendezvous hashing,
    Thaler and Ravishankar, 1998).
    """
    return zlib.crc32(f"{peer}\0{model}".encode())


def preference(option: Option) -> tuple[int, int, int, bool, float, int, str]:
    """The lower, the sooner an option is tried.

    1. A model that is ready, anywhere, before a load here, and that before a load elsewhere.
    2. The highest priority; this daemon has 0.
    3. The fewest that wait.
    4. This daemon, then who gave first tokens the soonest; one that was never asked is tried before those.
    5. Models are spread.
    """
    return (
        option.standing,
        -option.priority,
        option.waiting,
        option.peer is not None,
        option.first_token_s or 0.0,
        option.spread,
        option.peer or "",
    )
