"""Snapshots for readers, made from the planner's data and an entry."""

from __future__ import annotations

from mlxd.registry.entry import Entry
from mlxd.registry.errors import Failure
from mlxd.registry.residency import Resident
from mlxd.registry.snapshot import ModelSnapshot
from mlxd.registry.states import State


def snapshot(entry: Entry, model: Resident, queued: int, now: float, wall_now: float) -> ModelSnapshot:
    """One model as readers see it: `now` is monotonic, `wall_now` the same moment since the epoch."""

    def wall(moment: float) -> float:
        # the two clocks are read one after the other
        return round(wall_now + (moment - now), 3)

    stats = entry.stats()
    kv_bytes = stats.kv_bytes if stats is not None else 0
    prefix_cache_bytes = stats.prefix_cache_bytes if stats is not None else 0
    ttl = model.idle_limit
    expires = model.state is State.READY and ttl is not None and not model.pinned and not model.leases
    used = model.last_used > 0
    return ModelSnapshot(
        spec=entry.spec,
        state=model.state,
        pinned=model.pinned,
        ttl=ttl,
        leases=model.leases,
        queued=queued,
        resident_bytes=entry.weight_bytes + kv_bytes + prefix_cache_bytes,
        kv_bytes=kv_bytes,
        prefix_cache_bytes=prefix_cache_bytes,
        unload_at=wall(model.last_used + ttl) if expires and ttl is not None else None,
        loaded_at=wall(entry.loaded_at) if entry.loaded_at is not None else None,
        last_used_at=wall(model.last_used) if used else None,
        load_seconds=entry.load_seconds,
        load=entry.load_status(now),
        failure=failure_of(model, now, wall_now),
        engine=stats,
        pid=None if entry.engine is None else entry.engine.pid,
    )


def failure_of(model: Resident, now: float, wall_now: float) -> Failure | None:
    """The last failure of a model that has not loaded since."""
    trouble = model.trouble
    if trouble is None:
        return None
    return Failure(trouble.reason, trouble.message, trouble.attempts, wall_now + trouble.retry_at - now)
