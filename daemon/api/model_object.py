"""The public shapes of the admin API, made from the registry's snapshots."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct, to_builtins

from mlxd.daemon.api.admin_objects import (
    DecisionObject,
    DraftObject,
    EngineObject,
    FailureObject,
    LoadObject,
    MemoryStatus,
    ModelMemory,
    ModelStatus,
    OutsideObject,
)
from mlxd.daemon.api.services import Services
from mlxd.daemon.engine_factory import context_length
from mlxd.engines.errors import LoadFailure
from mlxd.engines.types import DraftStats, EngineStats
from mlxd.memory.footprint import MemoryLimits, Reading
from mlxd.memory.parts import Parts
from mlxd.registry.errors import Failure
from mlxd.registry.snapshot import Decision, LoadStatus, ModelSnapshot
from mlxd.registry.states import State


def model_now(services: Services, model: ModelSnapshot) -> dict[str, Any]:
    """One model of this daemon."""
    engine = services.settings.engine_for(model.spec.name)
    capabilities = services.live.catalog.capabilities(model.spec)
    return model_object(model, capabilities, context_length(model.spec, engine), engine.isolation)


def memory_now(services: Services) -> dict[str, Any]:
    """The daemon's memory as of the last measurement; only before the first one this measures."""
    reading = services.guard.reading()
    models = [services.registry.model(name) for name in sorted(services.registry.engines())]
    return memory_object(reading, services.books.parts(models), services.guard.limits_now, models)


def model_object(model: ModelSnapshot, capabilities: list[str], context_length: int, isolation: str) -> dict[str, Any]:
    """One model; times are seconds since the epoch, sizes bytes, lengths tokens."""
    status = ModelStatus(
        id=model.spec.name,
        aliases=[*model.spec.aliases, *model.spec.presets],
        kind=model.spec.kind,
        capabilities=capabilities,
        context_length=context_length,
        path=str(model.spec.path),
        state=State(model.state),
        pinned=model.pinned,
        ttl_s=model.ttl,
        unload_at=model.unload_at,
        weight_bytes=model.spec.weight_bytes,
        resident_bytes=model.resident_bytes,
        kv_bytes=model.kv_bytes,
        prefix_cache_bytes=model.prefix_cache_bytes,
        leases=model.leases,
        queued=model.queued,
        loaded_at=model.loaded_at,
        last_used_at=model.last_used_at,
        load_seconds=model.load_seconds,
        isolation=isolation,
        hosts=UNSET if model.spec.shards is None else [host.name for host in model.spec.shards.hosts],
        pid=model.pid,
        load=_load(model.load),
        error=_failure(model.failure),
        engine=_engine(model.engine),
    )
    return _plain(status)


def decision_object(decision: Decision) -> dict[str, Any]:
    """One decision with its inputs."""
    shown = DecisionObject(
        seq=decision.seq,
        at=decision.at,
        kind=decision.kind,
        model=decision.model,
        reason=decision.reason,
        for_model=decision.for_model,
        for_request=decision.for_request,
        inputs=dict(decision.inputs),
    )
    return _plain(shown)


def memory_object(reading: Reading, parts: Parts, limits: MemoryLimits, models: list[ModelSnapshot]) -> dict[str, Any]:
    """The footprint, its parts, and the limits that hold now with the name of the one that binds."""
    footprint = reading.footprint
    status = MemoryStatus(
        footprint_bytes=footprint.bytes,
        ceiling_bytes=limits.ceiling_bytes,
        soft_bytes=limits.soft_bytes,
        limit=limits.limit,
        pressure=reading.pressure,
        outside=OutsideObject(footprint.strain.level, reading.mark.reason),
        machine_total_bytes=footprint.machine_total,
        machine_available_bytes=footprint.machine_available,
        parts=parts,
        models=[_model_memory(model) for model in models if model.engine is not None],
    )
    return _plain(status)


def _model_memory(model: ModelSnapshot) -> ModelMemory:
    weights = model.resident_bytes - model.kv_bytes - model.prefix_cache_bytes
    return ModelMemory(model.spec.name, weights, model.kv_bytes, model.prefix_cache_bytes)


def _load(load: LoadStatus | None) -> LoadObject | None:
    return None if load is None else LoadObject(load.progress.bytes_done, load.progress.bytes_total, load.eta_s)


def _failure(failure: Failure | None) -> FailureObject | None:
    if failure is None:
        return None
    return FailureObject(LoadFailure(failure.reason), failure.message, failure.attempts, failure.retry_at)


def _engine(stats: EngineStats | None) -> EngineObject | None:
    if stats is None:
        return None
    return EngineObject(
        running=stats.running,
        waiting=stats.waiting,
        prompt_tokens=stats.prompt_tokens,
        completion_tokens=stats.completion_tokens,
        cached_tokens=stats.cached_tokens,
        decode_tps=stats.decode_tps,
        heartbeat_age_s=stats.heartbeat_age_s,
        draft=UNSET if stats.draft is None else _draft(stats.draft),
    )


def _draft(draft: DraftStats) -> DraftObject:
    rate = draft.accepted / draft.proposed if draft.proposed else None
    return DraftObject(draft.proposed, draft.accepted, rate)


def _plain(answer: Struct) -> dict[str, Any]:
    plain: dict[str, Any] = to_builtins(answer)
    return plain
