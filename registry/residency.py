"""The planner's data: what is resident, who waits, what may be used. Frozen; times are monotonic seconds."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from mlxd.registry.states import RESIDENT, Move, State, move


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why the last load failed, how often in a row, and when the next try is allowed."""

    reason: str
    message: str
    attempts: int
    retry_at: float


@dataclass(frozen=True, slots=True)
class Resident:
    """One model. `need` is what a load must find free, in bytes; `generation` counts loads."""

    name: str
    need: int
    pinned: bool = False
    ttl: float | None = None
    state: State = State.UNLOADED
    generation: int = 0
    leases: int = 0
    last_used: float = 0.0
    loaded_at: float = 0.0
    drain_until: float | None = None
    trouble: Trouble | None = None

    def moved(self, what: Move, **changes: object) -> Resident:
        """This model after a move. Raises IllegalMove."""
        return replace(self, state=move(self.name, self.state, what), **changes)  # type: ignore[arg-type]

    @property
    def committed(self) -> int:
        """Bytes charged to this model now."""
        return self.need if self.state in RESIDENT else 0


class Purpose(enum.StrEnum):
    """What a waiter wants: the right to use a model, or only that it is loaded."""

    LEASE = "lease"
    LOAD = "load"


@dataclass(frozen=True, slots=True)
class Waiter:
    """One wait for a model; `deadline` None is no bound."""

    id: int
    model: str
    since: float
    purpose: Purpose = Purpose.LEASE
    deadline: float | None = None
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class RoomWanted:
    """Somebody waits until these models are unloaded."""

    id: int
    victims: frozenset[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """Bytes: the limit for models and what it is called, what is measured now, and what is not models'.

    `prefixes` are kept prompt prefixes. They are not in `measured`: whoever needs their room gets it.
    """

    limit: int
    limit_name: str
    measured: int
    base: int
    prefixes: int = 0

    @property
    def unused(self) -> int:
        """Bytes that are free before any prefix is given up."""
        return self.limit - self.measured - self.prefixes


@dataclass(frozen=True, slots=True)
class Policy:
    """The [residency] table and what belongs to it; seconds and counts, 0 for no bound in `max_loaded`."""

    max_loaded: int = 0
    queue_size: int = 256
    max_wait: float = 20.0
    min_residency: float = 0.0
    unload_timeout: float = 30.0
    retry_backoff: float = 5.0
    max_backoff: float = 300.0
    autoload: bool = True


@dataclass(frozen=True, slots=True)
class Residency:
    """Everything the planner knows. Waiters are in order of arrival."""

    policy: Policy
    memory: MemoryReading
    models: Mapping[str, Resident] = field(default_factory=dict)
    waiters: tuple[Waiter, ...] = ()
    rooms: tuple[RoomWanted, ...] = ()
    closing: bool = False
