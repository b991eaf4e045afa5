"""Which models leave: the cheapest set that frees enough. Pure functions of names and numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

from mlxd.registry.ledger import Reserve

# Sets of up to so many models are all compared; 2 ** 8 of them take well below a millisecond.
_COMPARED = 8
# Differences of less than this part of the need are none.
_GRAIN = 16


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model that may leave: the bytes that it gives back, how long it was idle and what its next load takes, both
    in seconds.
    """

    name: str
    bytes: int
    idle: float
    reload: float

    @property
    def age(self) -> int:
        """Idle times within a factor of two are alike."""
        return int(math.log2(1.0 + max(0.0, self.idle)))


def choose(candidates: Iterable[Candidate], short: Reserve) -> tuple[str, ...] | None:
    """The names of the cheapest set that makes up for what is short, longest idle first; None when all are too few.

    Cheapest is, in this order: the longest idle, judged by the member that was used last; the fewest bytes over the
    need; the fewest seconds of loading them again; the fewest models.
    """
    oldest_first = sorted(candidates, key=lambda candidate: (-candidate.idle, candidate.name))
    enough = _shortest_prefix(oldest_first, short)
    if enough is None:
        return None
    pool = [candidate for candidate in oldest_first if candidate.age >= enough[-1].age] if enough else []
    if len(pool) <= _COMPARED:
        enough = min(_sufficient(pool, short), key=lambda chosen: _cost(chosen, short))
    else:
        enough = _without_spare(enough, short)
    return tuple(candidate.name for candidate in enough)


def _shortest_prefix(candidates: Sequence[Candidate], short: Reserve) -> Sequence[Candidate] | None:
    lengths = range(len(candidates) + 1)
    return next((candidates[:length] for length in lengths if _suffices(candidates[:length], short)), None)


def _sufficient(pool: Sequence[Candidate], short: Reserve) -> Iterable[Sequence[Candidate]]:
    sets = (chosen for size in range(len(pool) + 1) for chosen in combinations(pool, size))
    return (chosen for chosen in sets if _suffices(chosen, short))


def _suffices(chosen: Sequence[Candidate], short: Reserve) -> bool:
    return len(chosen) >= short.places and sum(candidate.bytes for candidate in chosen) >= short.bytes


def _cost(chosen: Sequence[Candidate], short: Reserve) -> tuple[float, ...]:
    over = sum(candidate.bytes for candidate in chosen) - short.bytes
    grain = max(1, short.bytes // _GRAIN)
    reload = sum(candidate.reload for candidate in chosen)
    return (over // grain, reload, len(chosen), -min((candidate.idle for candidate in chosen), default=0.0))


def _without_spare(chosen: Sequence[Candidate], short: Reserve) -> Sequence[Candidate]:
    # the last one is what made it enough; of the others the most recently used are spared first
    needed = list(chosen)
    for candidate in reversed(chosen[:-1]):
        rest = [kept for kept in needed if kept is not candidate]
        if _suffices(rest, short):
            needed = rest
    return needed
