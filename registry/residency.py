"""The planner's data: what is resident, who waits, what may be used. Frozen; times are monotonic seconds."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from mlxd.registry.deaths import Deaths
from mlxd.registry.states import Move, State, move


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why the last load failed, how often in a row, and when the next try is allowed."""

    reason: str
    message: str
    attempts: int
    retry_at: float


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """Seconds of idleness that a client wants a model kept for, None for ever."""

    seconds: float | None


@dataclass(frozen=True, slots=True)
class Resident:
    """One model. `weights` are the bytes of a load, from its files until a load has measured them; `kv_floor` is the
    KV cache that a load must find room for beside them. `generation` is the number of its last load.

    `admitted` is what the load in memory or on its way was let in with, then what it was measured to need, in bytes;
    `into` is how much of it is what others left behind.
    `load_seconds` and `answer_seconds` are what the last load and, on average, a lease took; None until there was one.
    `keep_alive` stands in for `ttl` until this load leaves memory or the ttl is changed.
    `drain_for` is the model that a drain makes room for. `cancelling` is set once a load was asked to stop, `outdated`
    while a model in memory is not the one that is configured now, `removed` when it leaves the books with its memory;
    `retiring` while it drains for one of these two. `loaded_key` is the `load_key` of what is in memory.
    `deaths` are those of its engines in a row; `revives` says that it is pinned, died in memory, and is to be loaded
    again by itself once its back-off is over.
    """

    name: str
    weights: int
    kv_floor: int = 0
    load_key: str = ""
    pinned: bool = False
    ttl: float | None = None
    keep_alive: KeepAlive | None = None
    state: State = State.UNLOADED
    generation: int = 0
    admitted: int = 0
    into: int = 0
    leases: int = 0
    last_used: float = 0.0
    loaded_at: float = 0.0
    load_started: float = 0.0
    load_seconds: float | None = None
    answer_seconds: float | None = None
    drain_until: float | None = None
    drain_for: str | None = None
    cancelling: bool = False
    outdated: bool = False
    removed: bool = False
    retiring: bool = False
    loaded_key: str = ""
    trouble: Trouble | None = None
    deaths: Deaths | None = None
    revives: bool = False

    def moved(self, what: Move, **changes: object) -> Resident:
        """This model after a move. Raises IllegalMove."""
        return replace(self, state=move(self.name, self.state, what), **changes)  # type: ignore[arg-type]

    @property
    def need(self) -> int:
        """Bytes that a load must find free."""
        return self.weights + self.kv_floor

    @property
    def idle_limit(self) -> float | None:
        """Seconds of idleness after which it is unloaded, None for never."""
        return self.ttl if self.keep_alive is None else self.keep_alive.seconds


class Purpose(enum.StrEnum):
    """What a waiter wants: the right to use a model, only that it is loaded, or that a pinned model is there again.

    For the last nobody waits but the planner itself, and nobody is told how it ends.
    """

    LEASE = "lease"
    LOAD = "load"
    PINNED = "pinned"


@dataclass(frozen=True, slots=True)
class Waiter:
    """One wait for a model; `deadline` None is no bound. `key` is whose wait it is, None for nobody in particular."""

    id: int
    model: str
    since: float
    purpose: Purpose = Purpose.LEASE
    deadline: float | None = None
    request_id: str | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True)
class RoomWanted:
    """Somebody waits until these models are unloaded and, if they `settle`, what they leave behind has settled."""

    id: int
    victims: frozenset[tuple[str, int]]
    settle: bool = True


@dataclass(frozen=True, slots=True)
class Held:
    """What the engine of a loaded model holds beside kept prefixes, in bytes; `promised` is what its requests may take
    yet.
    """

    weights: int
    kv: int = 0
    promised: int = 0


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """Bytes: the limit for models and what it is called, what is measured now, and what is not models'.

    `limit_now` is what holds while other programs need memory, None when that is the limit. It says what may be loaded
    now; what can be loaded at all is a matter of the limit.
    `prefixes` are kept prompt prefixes. They are not in `measured`: whoever needs their room gets it. `held` is what
    each loaded model's engine holds, by name.
    """

    limit: int
    limit_name: str
    measured: int
    base: int
    prefixes: int = 0
    held: Mapping[str, Held] = field(default_factory=dict)
    limit_now: int | None = None

    @property
    def present_limit(self) -> int:
        """What may be in use now."""
        return self.limit if self.limit_now is None else min(self.limit, self.limit_now)

    @property
    def unused(self) -> int:
        """Bytes that are free before any prefix is given up."""
        return self.present_limit - self.measured - self.prefixes


@dataclass(frozen=True, slots=True)
class Residue:
    """Bytes that an engine has given back and that may still be measured; from `due` on they count as free."""

    model: str
    generation: int
    bytes: int
    due: float


@dataclass(frozen=True, slots=True)
class Remains:
    """What engines that are gone left behind, in bytes: `late` is given back, oldest first, `lost` is not."""

    late: tuple[Residue, ...] = ()
    lost: int = 0

    def settled(self, now: float) -> int:
        """What was given back and has had its time to go."""
        return sum(residue.bytes for residue in self.late if residue.due <= now)

    def pending(self, now: float) -> tuple[Residue, ...]:
        """What was given back a moment ago."""
        return tuple(residue for residue in self.late if now < residue.due)


@dataclass(frozen=True, slots=True)
class Policy:
    """The [residency] table and what belongs to it; seconds and counts, 0 for no bound in `max_loaded`.

    `max_loading` is how many models may be read into memory at the same time.
    """

    max_loaded: int = 0
    max_loading: int = 1
    queue_size: int = 256
    max_wait: float = 20.0
    min_residency: float = 0.0
    unload_timeout: float = 30.0
    retry_backoff: float = 5.0
    max_backoff: float = 300.0
    autoload: bool = True


@dataclass(frozen=True, slots=True)
class Residency:
    """Everything the planner knows. Waiters are in order of arrival.

    `loads` counts all loads, so that no generation comes twice. `served` says when a load was last started for a key,
    `seconds_per_byte` how long loads take on average.
    """

    policy: Policy
    memory: MemoryReading
    models: Mapping[str, Resident] = field(default_factory=dict)
    waiters: tuple[Waiter, ...] = ()
    rooms: tuple[RoomWanted, ...] = ()
    remains: Remains = field(default_factory=Remains)
    loads: int = 0
    served: Mapping[str | None, float] = field(default_factory=dict)
    seconds_per_byte: float | None = None
    closing: bool = False
