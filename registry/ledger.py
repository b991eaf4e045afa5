"""The books: the bytes that each model in memory, on its way in or on its way out is charged with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from mlxd.registry.residency import Residency, Resident
from mlxd.registry.states import RESIDENT


@dataclass(frozen=True, slots=True)
class Reserve:
    """Room that is spoken for but not yet charged: bytes, and places in memory."""

    bytes: int = 0
    places: int = 0


NOTHING = Reserve()


@dataclass(frozen=True, slots=True)
class Ledger:
    """One reading of the books. `charges` holds the resident models; `places` how many more may be, None for no bound.

    `left` is what the limit that holds now leaves beside the larger of what is charged and what is measured, in bytes;
    it may be negative. `unbooked` is what is measured beyond the charges. Of that, `settled` is there for the next load
    to use, and `pending` was given back a moment ago.
    """

    charges: Mapping[str, int]
    left: int
    unbooked: int
    settled: int
    pending: int
    places: int | None

    @classmethod
    def of(cls, state: Residency, now: float) -> Ledger:
        """Add the books up."""
        memory, policy, remains = state.memory, state.policy, state.remains
        charges = {model.name: charge(state, model) for model in state.models.values() if model.state in RESIDENT}
        booked = memory.base + sum(charges.values())
        unbooked = max(0, memory.measured - booked)
        given_back = max(0, unbooked - remains.lost)
        settled = min(given_back, remains.settled(now))
        pending = min(given_back - settled, sum(residue.bytes for residue in remains.pending(now)))
        places = policy.max_loaded - len(charges) if policy.max_loaded else None
        return cls(charges, memory.present_limit - booked - unbooked, unbooked, settled, pending, places)

    @property
    def free(self) -> int:
        """What a load finds. More than the limit is never in use for it: then nothing that has settled is given."""
        return self.left + self.settled if self.left >= 0 else self.left

    def short(self, need: int, beside: Reserve = NOTHING) -> Reserve:
        """What is missing for a load of `need` bytes now; nothing is negative.

        It takes what has settled before it takes anything that would be measured anew.
        """
        missing = max(0, need + beside.bytes - self.settled) - self.left
        places = 0 if self.places is None else 1 + beside.places - self.places
        return Reserve(max(0, missing), max(0, places))

    def short_without(self, need: int, without: Iterable[str], beside: Reserve = NOTHING) -> Reserve:
        """What is missing once the models in `without` are gone, and what was given back is seen to be free."""
        gone = [self.charges[name] for name in without]
        later = replace(
            self,
            left=self.left + self.pending + sum(gone),
            places=None if self.places is None else self.places + len(gone),
        )
        return later.short(need, beside)

    def fits(self, need: int) -> bool:
        """Whether nothing is missing now; see `short`."""
        return self.short(need) == NOTHING


def charge(state: Residency, model: Resident) -> int:
    """Bytes of a resident model: what it was let in with, or what its engine holds if that is more.

    Kept prefixes are not in it: they go before any model does.
    """
    held = state.memory.held.get(model.name)
    return model.admitted if held is None else max(model.admitted, held.weights + held.kv + held.promised)
