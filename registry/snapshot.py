"""What readers see of the registry: plain frozen data, made on request, never a live object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mlxd.engines.types import EngineStats, LoadProgress
from mlxd.registry.errors import Failure
from mlxd.registry.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class LoadStatus:
    """A load in progress; `eta_s` is seconds, None until it can be told."""

    progress: LoadProgress
    eta_s: float | None


@dataclass(frozen=True, slots=True)
class ModelSnapshot:
    """One model now. Times are wall-clock seconds since the epoch, sizes bytes, durations seconds."""

    spec: ModelSpec
    state: str
    pinned: bool
    ttl: float | None
    leases: int
    queued: int
    resident_bytes: int
    kv_bytes: int
    prefix_cache_bytes: int = 0
    unload_at: float | None = None
    loaded_at: float | None = None
    last_used_at: float | None = None
    load_seconds: float | None = None
    load: LoadStatus | None = None
    failure: Failure | None = None
    engine: EngineStats | None = None
    pid: int | None = None

    @property
    def waiting(self) -> int:
        """Requests that wait for the model, or for a slot in its engine."""
        return self.queued + (self.engine.waiting if self.engine is not None else 0)


@dataclass(frozen=True, slots=True)
class Decision:
    """Why the registry or the guard did something; `at` is wall-clock seconds since the epoch."""

    seq: int
    at: float
    kind: str
    model: str | None
    reason: str
    for_model: str | None = None
    for_request: str | None = None
    inputs: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UnloadResult:
    """What an unload gave back, in bytes; 0 when the model was not resident."""

    freed_bytes: int
