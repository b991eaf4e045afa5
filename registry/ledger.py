"""The books: the bytes that each model in memory, on its way in or on its way out is charged with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

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

    `free` is what the limit leaves beside the larger of what is charged and what is measured, in bytes; it may be
    negative. `unbooked` is what is measured beyond the charges.
    """

    charges: Mapping[str, int]
    free: int
    unbooked: int
    places: int | None

    @classmethod
    def of(cls, state: Residency) -> Ledger:
        """Add the books up."""
        memory, policy = state.memory, state.policy
        charges = {model.name: charge(state, model) for model in state.models.values() if model.state in RESIDENT}
        booked = memory.base + sum(charges.values())
        unbooked = max(0, memory.measured - booked)
        places = policy.max_loaded - len(charges) if policy.max_loaded else None
        return cls(charges, memory.limit - booked - unbooked, unbooked, places)

    def short(self, need: int, without: Iterable[str] = (), beside: Reserve = NOTHING) -> Reserve:
        """What is missing for a load of `need` bytes once the models in `without` are gone; nothing is negative."""
        gone = list(without)
        missing = need + beside.bytes - self.free - sum(self.charges[name] for name in gone)
        places = 0 if self.places is None else 1 + beside.places - self.places - len(gone)
        return Reserve(max(0, missing), max(0, places))

    def fits(self, need: int, without: Iterable[str] = (), beside: Reserve = NOTHING) -> bool:
        """Whether nothing is missing; see `short`."""
        return self.short(need, without, beside) == NOTHING


def charge(state: Residency, model: Resident) -> int:
    """Bytes of a resident model: what it was let in with, or what its engine holds if that is more.

    Kept prefixes are not in it: they go before any model does.
    """
    held = state.memory.held.get(model.name)
    return model.admitted if held is None else max(model.admitted, held.weights + held.kv)
