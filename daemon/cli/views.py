"""The API's objects, as far as commands show them, and how their values read."""

from __future__ import annotations

import time
from datetime import datetime

from msgspec import Struct, field

from mlxd.daemon.units import format_bytes, format_duration

_NOT_IN_MEMORY = ("unloaded", "failed")
_DASH = "-"


class LoadView(Struct, frozen=True):
    """A load in progress, in bytes; `eta_s` is seconds, None until it can be told."""

    bytes_done: int = 0
    bytes_total: int = 0
    eta_s: float | None = None

    def percent(self) -> int:
        """How much is loaded, 0 to 100."""
        return percent(self.bytes_done, self.bytes_total)


class ErrorView(Struct, frozen=True):
    """The last failed load; `retry_at` is seconds since the epoch."""

    reason: str
    message: str = ""
    attempts: int = 0
    retry_at: float | None = None


class EngineView(Struct, frozen=True):
    """A ready engine's counters."""

    running: int = 0
    waiting: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    decode_tps: float | None = None
    heartbeat_age_s: float | None = None


class ModelView(Struct, frozen=True):
    """A model: sizes in bytes, moments in seconds since the epoch, durations in seconds."""

    id: str
    state: str
    kind: str = ""
    capabilities: tuple[str, ...] = ()
    context_length: int = 0
    path: str = ""
    aliases: tuple[str, ...] = ()
    pinned: bool = False
    ttl_s: float | None = None
    unload_at: float | None = None
    weight_bytes: int = 0
    resident_bytes: int = 0
    kv_bytes: int = 0
    prefix_cache_bytes: int = 0
    leases: int = 0
    queued: int = 0
    loaded_at: float | None = None
    last_used_at: float | None = None
    load_seconds: float | None = None
    isolation: str = ""
    hosts: tuple[str, ...] = ()
    pid: int | None = None
    load: LoadView | None = None
    error: ErrorView | None = None
    engine: EngineView | None = None

    def is_in_memory(self) -> bool:
        """Whether it takes memory now, or is about to."""
        return self.state not in _NOT_IN_MEMORY

    def state_text(self) -> str:
        """The state, with the progress of a load."""
        return f"{self.state} {self.load.percent()}%" if self.load is not None else self.state

    def unload_text(self) -> str:
        """When it leaves memory by itself."""
        if self.pinned:
            return "pinned"
        if self.unload_at is not None:
            return f"in {duration(max(0.0, self.unload_at - time.time()))}"
        return "never" if self.ttl_s is None else _DASH


class ModelList(Struct, frozen=True):
    """All models."""

    data: tuple[ModelView, ...]


class RequestView(Struct, frozen=True):
    """A queued or running request; `age_s` in seconds, `decode_tps` in tokens a second."""

    id: str
    model: str
    state: str
    age_s: float = 0.0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    decode_tps: float | None = None
    waiting_for: str | None = None


class RequestList(Struct, frozen=True):
    """All requests."""

    data: tuple[RequestView, ...]


class MemoryView(Struct, frozen=True):
    """The daemon's memory, in bytes."""

    footprint_bytes: int
    ceiling_bytes: int
    soft_bytes: int | None = None
    limit: str = ""
    pressure: str = ""
    machine_total_bytes: int | None = None
    machine_available_bytes: int | None = None
    parts: dict[str, int] = field(default_factory=dict)


def percent(done: int, total: int) -> int:
    """How much of a whole is done, 0 to 100."""
    return min(100, 100 * done // total) if total else 0


def size(count: int | None) -> str:
    """A number of bytes, or a dash for none."""
    return format_bytes(count) if count else _DASH


def duration(seconds: float) -> str:
    """A duration with the digits that matter: whole seconds, below ten tenths, below one milliseconds."""
    if seconds < 1:
        return format_duration(round(seconds, 3))
    return format_duration(round(seconds, 1) if seconds < 10 else round(seconds))  # noqa: PLR2004 - a matter of taste


def moment(at: float | None) -> str:
    """A moment in local time and how far it is, or a dash for never."""
    if at is None:
        return _DASH
    ago = time.time() - at
    distance = f"{duration(ago)} ago" if ago >= 0 else f"in {duration(-ago)}"
    return f"{datetime.fromtimestamp(at).astimezone():%Y-%m-%d %H:%M:%S} ({distance})"
