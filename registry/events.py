"""What the planner is told and what it wants done. Frozen data, no behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mlxd.registry.errors import RegistryError
from mlxd.registry.residency import Policy, Resident, Waiter

# -- events ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Wanted:
    """Somebody wants a model: a request its lease, an operator its load."""

    waiter: Waiter


@dataclass(frozen=True, slots=True)
class Left:
    """A waiter gave up."""

    waiter_id: int


@dataclass(frozen=True, slots=True)
class Released:
    """A lease on this generation of a model ended; it was held for so many `seconds`."""

    model: str
    generation: int
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class LoadDone:
    """The load of this generation is ready; `weights` are its bytes in memory, None when that is not known."""

    model: str
    generation: int
    weights: int | None = None


@dataclass(frozen=True, slots=True)
class LoadBroke:
    """The load of this generation failed; `cancelled` is no fault and starts no back-off.

    Not `clean` when its engine has not given back what it had. `facts` as of EngineDied, when its process died.
    """

    model: str
    generation: int
    reason: str
    message: str
    cancelled: bool = False
    clean: bool = True
    facts: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UnloadDone:
    """The engine of this generation is gone; not `clean` when it missed its deadline and was abandoned.

    `held` is what it had before it closed, in bytes, kept prefixes included.
    """

    model: str
    generation: int
    clean: bool = True
    held: int = 0


@dataclass(frozen=True, slots=True)
class EngineDied:
    """The engine of this generation gave up by itself, or its process died.

    `facts` are what is known of the end, `suspects` the fingerprints of the requests that it was at work on.
    """

    model: str
    generation: int
    message: str
    facts: Mapping[str, object] = field(default_factory=dict)
    suspects: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UnloadWanted:
    """An operator wants a model gone; `until` bounds a drain, `force` does not wait for leases."""

    model: str
    force: bool = False
    until: float | None = None


@dataclass(frozen=True, slots=True)
class CancelLoadWanted:
    """An operator wants a load stopped."""

    model: str


@dataclass(frozen=True, slots=True)
class PolicyChanged:
    """An operator changes one model's residency; None for `pinned` keeps it."""

    model: str
    pinned: bool | None = None
    ttl: float | None = None
    change_ttl: bool = False


@dataclass(frozen=True, slots=True)
class KeptAlive:
    """A client says how long a loaded model may be idle from now on, in seconds, None for ever."""

    model: str
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Reconfigured:
    """The configuration or the folders changed: what holds from now on, and all models that there are.

    Of each model only what configuration and files say is looked at: name, weights, kv_floor, load_key, pinned, ttl.
    """

    policy: Policy
    models: tuple[Resident, ...]


@dataclass(frozen=True, slots=True)
class RoomNeeded:
    """A prompt or the guard needs `bytes` freed by idle models.

    Unless `partial`, nothing is evicted when all of them together would not be enough.
    """

    id: int
    bytes: int
    reason: str
    for_model: str | None = None
    for_request: str | None = None
    partial: bool = False


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class Closing:
    """The daemon stops: every waiter is refused, nothing new is admitted."""


Event = (
    Wanted
    | Left
    | Released
    | LoadDone
    | LoadBroke
    | UnloadDone
    | EngineDied
    | UnloadWanted
    | CancelLoadWanted
    | PolicyChanged
    | KeptAlive
    | Reconfigured
    | RoomNeeded
    | Tick
    | Closing
)

# -- effects -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartLoad:
    model: str
    generation: int


@dataclass(frozen=True, slots=True)
class CancelLoad:
    model: str


@dataclass(frozen=True, slots=True)
class StartUnload:
    """Close the engine; whoever still uses it gets an error."""

    model: str
    generation: int


@dataclass(frozen=True, slots=True)
class Forget:
    """The model was removed and is out of memory."""

    model: str


@dataclass(frozen=True, slots=True)
class Grant:
    """The waiter's model is ready; if it is `leased`, a lease on this generation is counted already."""

    waiter_id: int
    model: str
    generation: int
    leased: bool


@dataclass(frozen=True, slots=True)
class Refuse:
    waiter_id: int
    error: RegistryError


@dataclass(frozen=True, slots=True)
class RoomAnswered:
    """What could be evicted for a RoomNeeded is gone."""

    id: int


@dataclass(frozen=True, slots=True)
class Decide:
    """A decision worth keeping, with what it was made of."""

    kind: str
    model: str | None
    reason: str
    for_model: str | None = None
    for_request: str | None = None
    inputs: Mapping[str, object] = field(default_factory=dict)


Effect = StartLoad | CancelLoad | StartUnload | Forget | Grant | Refuse | RoomAnswered | Decide
