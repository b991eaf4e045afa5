"""Registry and guard tell one observer each. What the feed is told, others are told too."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection

import structlog

from mlxd.daemon.api.outcomes import outcome_of
from mlxd.daemon.api.running import LiveRequest, RunningRequests
from mlxd.daemon.breadcrumbs import Breadcrumbs
from mlxd.daemon.engine_memory import LoadReserve
from mlxd.daemon.memory_relief import MemoryRelief
from mlxd.daemon.metrics import Metrics
from mlxd.daemon.restore import FirstLoads
from mlxd.engines.memory_share import MemoryShare
from mlxd.memory.footprint import Reading
from mlxd.memory.guard import MemoryGuard
from mlxd.registry.errors import ModelRemoved
from mlxd.registry.registry import ModelRegistry
from mlxd.registry.snapshot import Decision

log = structlog.stdlib.get_logger(__name__)

Names = Collection[str]


def connect_metrics(registry: ModelRegistry, running: RunningRequests, metrics: Metrics) -> None:
    """Metrics count decisions, loads and what requests came to, which is logged too."""
    told = registry.decisions.on_decision

    def on_end(request: LiveRequest, error: BaseException | None) -> None:
        outcome = outcome_of(request, error)
        metrics.traffic.ended(request.model, request.api, outcome)
        log.info(
            "request.ended",
            model=request.model,
            api=request.api,
            outcome=outcome,
            prompt_tokens=request.prompt_tokens,
            completion_tokens=request.generated_tokens,
        )

    def on_decision(decision: Decision) -> None:
        metrics.decided(decision)
        told(decision)

    def on_models(names: Names) -> None:
        for name in names:
            with contextlib.suppress(ModelRemoved):
                metrics.changed(name, registry.loaded(name))

    running.on_end = on_end
    registry.decisions.on_decision = on_decision
    _also(registry, on_models)


def connect_share(registry: ModelRegistry, guard: MemoryGuard, share: MemoryShare, relief: MemoryRelief) -> None:
    """The engines' share of memory knows of loads and of each measurement, and so does what relieves it."""
    told = guard.on_reading
    _also(registry, LoadReserve(share, registry).on_models)

    def on_reading(reading: Reading) -> None:
        relief.on_reading()
        share.changed()
        told(reading)

    guard.on_reading = on_reading


def connect_crumbs(registry: ModelRegistry, crumbs: Breadcrumbs, first_loads: FirstLoads) -> None:
    """What is on the disk follows the registry."""
    _also(registry, first_loads.on_models)
    _also(registry, crumbs.on_models)
    crumbs.follow(registry)


def _also(registry: ModelRegistry, observer: Callable[[Names], None]) -> None:
    """Tell this one of models, before those that are told already."""
    told = registry.on_models

    def on_models(names: Names) -> None:
        observer(names)
        told(names)

    registry.on_models = on_models
