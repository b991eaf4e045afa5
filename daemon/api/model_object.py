"""The public shapes of the admin API, made from the registry's snapshots."""

from __future__ import annotations

from typing import Any

from mlxd.daemon.api.services import Services
from mlxd.engines.types import DraftStats, EngineStats
from mlxd.memory.footprint import MemoryLimits, Reading
from mlxd.memory.parts import Parts
from mlxd.registry.errors import Failure
from mlxd.registry.snapshot import Decision, LoadStatus, ModelSnapshot


def model_now(services: Services, model: ModelSnapshot) -> dict[str, Any]:
    """One model of this daemon."""
    return model_object(model, services.settings.engine_for(model.spec.name).isolation)


def memory_now(services: Services) -> dict[str, Any]:
    """The daemon's memory as of the last measurement; only before the first one this measures."""
    reading = services.guard.reading()
    models = [services.registry.model(name) for name in sorted(services.registry.engines())]
    return memory_object(reading, services.books.parts(models), services.guard.limits_now, models)


def model_object(model: ModelSnapshot, isolation: str) -> dict[str, Any]:
    """One model; times are seconds since the epoch, sizes bytes."""
    return {
        "id": model.spec.name,
        "aliases": [*model.spec.aliases, *model.spec.presets],
        "kind": model.spec.kind,
        "path": str(model.spec.path),
        "state": model.state,
        "pinned": model.pinned,
        "ttl_s": model.ttl,
        "unload_at": model.unload_at,
        "weight_bytes": model.spec.weight_bytes,
        "resident_bytes": model.resident_bytes,
        "kv_bytes": model.kv_bytes,
        "prefix_cache_bytes": model.prefix_cache_bytes,
        "leases": model.leases,
        "queued": model.queued,
        "loaded_at": model.loaded_at,
        "last_used_at": model.last_used_at,
        "load_seconds": model.load_seconds,
        "isolation": isolation,
        "pid": None,
        "load": _load(model.load),
        "error": failure_object(model.failure),
        "engine": _engine(model.engine),
    }


def failure_object(failure: Failure | None) -> dict[str, Any] | None:
    """The last failed load."""
    if failure is None:
        return None
    return {
        "reason": failure.reason,
        "message": failure.message,
        "attempts": failure.attempts,
        "retry_at": failure.retry_at,
    }


def decision_object(decision: Decision) -> dict[str, Any]:
    """One decision with its inputs."""
    return {
        "seq": decision.seq,
        "at": decision.at,
        "kind": decision.kind,
        "model": decision.model,
        "reason": decision.reason,
        "for_model": decision.for_model,
        "for_request": decision.for_request,
        "inputs": dict(decision.inputs),
    }


def memory_object(reading: Reading, parts: Parts, limits: MemoryLimits, models: list[ModelSnapshot]) -> dict[str, Any]:
    """The footprint, its parts, and the limits that hold now with the name of the one that binds."""
    footprint = reading.footprint
    return {
        "footprint_bytes": footprint.bytes,
        "ceiling_bytes": limits.ceiling_bytes,
        "soft_bytes": limits.soft_bytes,
        "limit": limits.limit,
        "pressure": reading.pressure,
        "outside": {"level": footprint.strain.level, "reason": reading.mark.reason},
        "machine_total_bytes": footprint.machine_total,
        "machine_available_bytes": footprint.machine_available,
        "parts": {
            "weights": parts.weights,
            "kv": parts.kv,
            "prefix_cache": parts.prefix_cache,
            "mlx_cache": parts.mlx_cache,
            "base": parts.base,
            "unexplained": parts.unexplained,
        },
        "models": [
            {
                "id": model.spec.name,
                "weight_bytes": model.resident_bytes - model.kv_bytes - model.prefix_cache_bytes,
                "kv_bytes": model.kv_bytes,
                "prefix_cache_bytes": model.prefix_cache_bytes,
            }
            for model in models
            if model.engine is not None
        ],
    }


def _load(load: LoadStatus | None) -> dict[str, Any] | None:
    if load is None:
        return None
    return {
        "bytes_done": load.progress.bytes_done,
        "bytes_total": load.progress.bytes_total,
        "eta_s": load.eta_s,
    }


def _engine(stats: EngineStats | None) -> dict[str, Any] | None:
    if stats is None:
        return None
    draft = {} if stats.draft is None else {"draft": _draft(stats.draft)}
    return {
        "running": stats.running,
        "waiting": stats.waiting,
        "prompt_tokens": stats.prompt_tokens,
        "completion_tokens": stats.completion_tokens,
        "cached_tokens": stats.cached_tokens,
        "decode_tps": stats.decode_tps,
        "heartbeat_age_s": stats.heartbeat_age_s,
        **draft,
    }


def _draft(draft: DraftStats) -> dict[str, Any]:
    rate = draft.accepted / draft.proposed if draft.proposed else None
    return {"proposed_tokens": draft.proposed, "accepted_tokens": draft.accepted, "acceptance_rate": rate}
