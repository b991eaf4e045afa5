"""What would happen if a model were asked for, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from mlxd.daemon.cli.views import duration
from mlxd.daemon.units import format_bytes

_WHY = {
    "pinned": "it is pinned (`mlxd unpin {id}`)",
    "leased": "requests use it",
    "min_residency": "it was loaded only just now (residency.min_residency)",
}

_HERE = "here"


class BlockerView(Struct, frozen=True):
    """A model that cannot leave."""

    id: str
    why: str

    def sentence(self) -> str:
        """Why it stays."""
        return f"{self.id} cannot leave: {_WHY.get(self.why, self.why).format(id=self.id)}."


class PlanView(Struct, frozen=True):
    """A plan: sizes in bytes, `eta_s` in seconds until the model would be ready, None when that cannot be told."""

    model: str
    verdict: str
    needed_bytes: int = 0
    free_bytes: int = 0
    evicts: tuple[str, ...] = ()
    waits_for: tuple[str, ...] = ()
    blocked_by: tuple[BlockerView, ...] = ()
    eta_s: float | None = None
    order: tuple[str, ...] = ()

    def sentences(self) -> Iterator[str]:
        """What would happen, who is in the way, and how long it would take."""
        if self.order and _HERE not in self.order:
            yield f"{self.model} is not on this machine."
        else:
            yield self._outcome()
        if any(name != _HERE for name in self.order):
            yield f"Requests for it go to {', then to '.join(map(_place, self.order))}."
        yield from (blocker.sentence() for blocker in self.blocked_by)
        if self.eta_s:
            yield f"It would be ready in about {duration(self.eta_s)}."

    def _outcome(self) -> str:
        name = self.model
        room = f"it needs {format_bytes(self.needed_bytes)}, and {format_bytes(max(0, self.free_bytes))} are free"
        match self.verdict:
            case "ready":
                return f"{name} is in memory and answers at once."
            case "loads":
                return f"{name} loads at once: {room}."
            case "loads_after_eviction":
                return f"{name} loads once {_all(self.evicts)} left memory: {room}."
            case "waits":
                return f"{name} waits{_for(self.waits_for, name)}: {room}."
            case "never_fits":
                return f"{name} does not fit, whoever else leaves: {room}."
            case "backing_off":
                return (
                    f"{name} could not be loaded and is not tried again yet: `mlxd show {name}` has the reason, "
                    f"and `mlxd load {name}` tries it at once."
                )
            case "autoload_off":
                return f"{name} is not in memory, and requests may not load it: `mlxd load {name}` does."
            case _:
                return f"{name}: {self.verdict}; {room}."


def _place(name: str) -> str:
    return "this daemon" if name == _HERE else f"peer {name}"


def _for(names: Sequence[str], model: str) -> str:
    if tuple(names) == (model,):
        return " until it has left memory or is loaded"
    return f" for {_all(names)}" if names else ""


def _all(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
