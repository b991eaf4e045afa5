"""What the operator's calls answer with: sizes in bytes, durations in seconds, times in seconds since the epoch."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from msgspec import UNSET, Struct, UnsetType

from mlxd.daemon.api.running import RequestView
from mlxd.daemon.downloads.pull import PullStatus
from mlxd.daemon.reload_diff import ReloadDiff
from mlxd.engines.errors import LoadFailure
from mlxd.memory.footprint import Pressure
from mlxd.memory.parts import Parts
from mlxd.registry.spec import ModelKind
from mlxd.registry.states import State

Item = TypeVar("Item")


class Listed(Struct, Generic[Item], frozen=True):
    """Several of a kind."""

    data: list[Item]


class LoadObject(Struct, frozen=True):
    """A load in progress."""

    bytes_done: int
    bytes_total: int
    eta_s: float | None


class PeerObject(Struct, frozen=True):
    """A peer: `state` is "up" while requests go to it, "down" while it is left alone, until `retry_in_s` at least.

    `models` are the names that it told last, `requests` those that are with it, and `first_token_s` is how long first
    tokens took lately.
    """

    name: str
    url: str
    priority: int
    state: str
    error: str | None
    retry_in_s: float | None
    is_mlxd: bool
    models: list[str]
    requests: int
    first_token_s: float | None


class FailureObject(Struct, frozen=True):
    """The last load that failed, and when the next may begin."""

    reason: LoadFailure
    message: str
    attempts: int
    retry_at: float


class DraftObject(Struct, frozen=True):
    """What speculative decoding has done."""

    proposed_tokens: int
    accepted_tokens: int
    acceptance_rate: float | None


class EngineObject(Struct, frozen=True):
    """What a loaded model's engine does, and has done since it was loaded."""

    running: int
    waiting: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    decode_tps: float
    heartbeat_age_s: float
    draft: DraftObject | UnsetType = UNSET


class ModelStatus(Struct, frozen=True, kw_only=True):
    """One model."""

    id: str
    aliases: list[str]
    kind: ModelKind
    capabilities: list[str]
    context_length: int
    path: str
    state: State
    pinned: bool
    ttl_s: float | None
    unload_at: float | None
    weight_bytes: int
    resident_bytes: int
    kv_bytes: int
    prefix_cache_bytes: int
    leases: int
    queued: int
    loaded_at: float | None
    last_used_at: float | None
    load_seconds: float | None
    isolation: str
    hosts: list[str] | UnsetType = UNSET
    pid: int | None
    load: LoadObject | None
    error: FailureObject | None
    engine: EngineObject | None


class UnloadedModel(ModelStatus, frozen=True, kw_only=True):
    """A model after its unload."""

    freed_bytes: int


class RemovedModel(Struct, frozen=True):
    """A model that a reload took away while it was unloaded."""

    id: str
    removed: bool
    freed_bytes: int


class Freed(Struct, frozen=True):
    """What the unload of one model gave back."""

    id: str
    freed_bytes: int


class OutsideObject(Struct, frozen=True):
    """Who else needs memory, and how urgently."""

    level: str
    reason: str | None


class ModelMemory(Struct, frozen=True):
    """What one model holds."""

    id: str
    weight_bytes: int
    kv_bytes: int
    prefix_cache_bytes: int


class MemoryStatus(Struct, frozen=True, kw_only=True):
    """The footprint as of the last sample, and the limits that hold now with the name of the one that binds."""

    footprint_bytes: int
    ceiling_bytes: int
    soft_bytes: int
    limit: str
    pressure: Pressure
    outside: OutsideObject
    machine_total_bytes: int
    machine_available_bytes: int
    parts: Parts
    models: list[ModelMemory]


class DecisionObject(Struct, frozen=True, kw_only=True):
    """One decision with its inputs."""

    seq: int
    at: float
    kind: str
    model: str | None
    reason: str
    for_model: str | None
    for_request: str | None
    inputs: dict[str, Any]


class FeedSnapshot(Struct, frozen=True):
    """The first event of the feed: all that later ones are about."""

    seq: int
    models: list[ModelStatus]
    requests: list[RequestView]
    pulls: list[PullStatus]
    memory: MemoryStatus
    decisions: list[DecisionObject]


class Aborted(Struct, frozen=True):
    """How many requests were ended."""

    aborted: int


class Cancelled(Struct, frozen=True):
    """A request that was ended on purpose."""

    id: str
    cancelled: bool


class Reloaded(ReloadDiff, frozen=True, kw_only=True):
    """What a reload has changed, or would change."""

    dry_run: bool


class Health(Struct, frozen=True):
    """The process is up."""

    status: str
    version: str
    pid: int
    uptime_s: float


class Readiness(Struct, frozen=True):
    """Whether requests are admitted and make progress, and if not, why."""

    status: str
    reasons: list[str]
