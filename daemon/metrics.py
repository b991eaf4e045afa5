"""What Prometheus reads: figures that are counted as they happen, and those that are looked up when it asks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from mlxd.daemon.memory_books import MemoryBooks
from mlxd.daemon.peers.peers import Peers
from mlxd.daemon.traffic import Traffic
from mlxd.engines.memory_share import MemoryShare
from mlxd.memory.guard import MemoryGuard
from mlxd.memory.ladder import Rung
from mlxd.registry.snapshot import Decision, ModelSnapshot
from mlxd.registry.states import State

# Seconds; one step or one prefill chunk is the aim.
_FREED_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

_LOAD_BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0)

Family = GaugeMetricFamily


class Metrics:
    """The daemon's own registry of metrics. `observe` names what is looked up at each reading."""

    def __init__(self) -> None:
        # those are a series more for each counter, which nobody reads
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self._freed = Histogram(
            "mlxd_cancel_to_freed_seconds",
            "From the cancel of a request, or the departure of its client, until its slot and KV cache were free.",
            ["model"],
            registry=self._registry,
            buckets=_FREED_BUCKETS,
        )
        self._rungs = Counter(
            "mlxd_memory_rungs",
            "What was done because memory was short, once for each time that it was.",
            ["rung"],
            registry=self._registry,
        )
        self._restarts = Counter(
            "mlxd_worker_restarts",
            "Loads of a model after its engine, or the process of it, had died.",
            ["model"],
            registry=self._registry,
        )
        self._evictions = Counter(
            "mlxd_evictions", "Models that had to leave memory, by the reason.", ["reason"], registry=self._registry
        )
        self._aborts = Counter(
            "mlxd_aborts", "Times that running requests were ended, by the reason.", ["reason"], registry=self._registry
        )
        self._loads = Histogram(
            "mlxd_model_load_seconds",
            "From the start of a load until its model was ready.",
            registry=self._registry,
            buckets=_LOAD_BUCKETS,
        )
        self._loaded_at: dict[str, float | None] = {}
        # models that have series of their own here
        self._named: set[str] = set()
        self.traffic = Traffic(self._registry)

    def decided(self, decision: Decision) -> None:
        """The registry has decided something."""
        match decision.kind:
            case "restart":
                self._named.add(decision.model or "")
                self._restarts.labels(decision.model).inc()
            case "evict":
                self._evictions.labels(decision.reason).inc()
            case "abort":
                self._aborts.labels(decision.reason).inc()

    def changed(self, model: str, loaded: tuple[float, float] | None) -> None:
        """A model is not as it was; `loaded` is the moment of its load, and the seconds of that, if it is ready."""
        if loaded is not None and self._loaded_at.get(model) != loaded[0]:
            self._loaded_at[model], seconds = loaded
            self._loads.observe(seconds)

    def rung(self, rung: Rung) -> None:
        """Memory was short, and this was done for it."""
        self._rungs.labels(rung.label).inc()

    def freed(self, model: str) -> Callable[[float], None]:
        """Takes the seconds from each cancel until memory and slot were free."""

        def observe(seconds: float) -> None:
            self._named.add(model)  # it may be forgotten already, and its engine still at work
            self._freed.labels(model).observe(seconds)

        return observe

    def forget(self, all_but: Collection[str]) -> None:
        """Drop the series of all models but these."""
        self.traffic.forget(all_but)
        for model in self._named.difference(all_but):
            self._freed.remove_by_labels({"model": model})
            self._restarts.remove_by_labels({"model": model})
        self._named.intersection_update(all_but)
        self._loaded_at = {model: at for model, at in self._loaded_at.items() if model in all_but}

    def observe(
        self, models: Callable[[], list[ModelSnapshot]], guard: MemoryGuard, books: MemoryBooks, share: MemoryShare
    ) -> None:
        """Look these up when somebody reads, on the event loop; called once."""
        self._registry.register(_Lookup(models, guard, books, share))

    def observe_peers(self, peers: Peers) -> None:
        """Look these up as well; called once."""
        self._registry.register(_PeerLookup(peers))

    def text(self) -> bytes:
        """All metrics in Prometheus's text format."""
        return generate_latest(self._registry)


class _Lookup(Collector):
    """Gauges over snapshots. Reading them measures nothing and wakes no engine."""

    def __init__(
        self, models: Callable[[], list[ModelSnapshot]], guard: MemoryGuard, books: MemoryBooks, share: MemoryShare
    ) -> None:
        self._models = models
        self._guard = guard
        self._books = books
        self._share = share

    def describe(self) -> Iterable[Family]:
        """Nothing: the registry must not look anything up while the daemon is built."""
        return ()

    def collect(self) -> Iterator[Family]:
        models = self._models()
        yield from _model_gauges(models)
        yield from self._memory_gauges(models)
        promised = "Bytes that prompts and loads were promised and have not taken yet."
        yield Family("mlxd_memory_promised_bytes", promised, value=self._share.promised)
        yield Family("mlxd_tasks", "Tasks of the daemon's event loop.", value=len(asyncio.all_tasks()))

    def _memory_gauges(self, models: list[ModelSnapshot]) -> Iterator[Family]:
        reading = self._guard.latest
        if reading is None:
            return
        parts, footprint = self._books.parts(models), reading.footprint
        memory = Family("mlxd_memory_bytes", "The footprint and what it is made of.", labels=["kind"])
        kinds = {
            "footprint": footprint.bytes,
            "mlx_active": footprint.mlx_active,
            "mlx_cache": parts.mlx_cache,
            "weights": parts.weights,
            "kv": parts.kv,
            "prefix_cache": parts.prefix_cache,
            "base": parts.base,
            "unexplained": parts.unexplained,
        }
        for kind, value in kinds.items():
            memory.add_metric([kind], value)
        yield memory
        limits = Family("mlxd_memory_limit_bytes", "Limits of the footprint.", labels=["kind"])
        limits.add_metric(["soft"], self._guard.soft_now)
        limits.add_metric(["ceiling"], self._guard.limits.ceiling_bytes)
        yield limits


class _PeerLookup(Collector):
    """Gauges of peers; nothing is asked of them for it."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    def describe(self) -> Iterable[Family]:
        """Nothing, as above."""
        return ()

    def collect(self) -> Iterator[Family]:
        up = Family("mlxd_peer_up", "1 for a peer that requests go to, 0 for one that is left alone.", labels=["peer"])
        requests = Family("mlxd_peer_requests", "Requests that are with a peer.", labels=["peer"])
        first = Family("mlxd_peer_first_token_seconds", "How long a peer's first tokens took lately.", labels=["peer"])
        for peer in self._peers.all():
            up.add_metric([peer.name], float(peer.is_up))
            requests.add_metric([peer.name], peer.in_flight)
            if peer.first_token_s is not None:
                first.add_metric([peer.name], peer.first_token_s)
        yield from (up, requests, first)


def _model_gauges(models: list[ModelSnapshot]) -> Iterator[Family]:
    state = Family("mlxd_model_state", "1 for the state that a model is in.", labels=["model", "state"])
    resident = Family("mlxd_model_resident_bytes", "Weights, KV cache and kept prompt prefixes.", labels=["model"])
    running = Family("mlxd_requests_running", "Requests that have a slot in their engine.", labels=["model"])
    waiting = Family("mlxd_requests_waiting", "Requests that wait for a model or a slot.", labels=["model"])
    age = Family("mlxd_engine_heartbeat_age_seconds", "Since an engine at work finished a step.", labels=["model"])
    for model in models:
        name = [model.spec.name]
        for one in State:
            state.add_metric([*name, str(one)], float(model.state == one))
        resident.add_metric(name, model.resident_bytes)
        waiting.add_metric(name, model.waiting)
        if model.engine is None:
            continue
        running.add_metric(name, model.engine.running)
        age.add_metric(name, model.engine.heartbeat_age_s)
    yield from (state, resident, running, waiting, age)
