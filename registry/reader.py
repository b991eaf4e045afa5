"""What others may know of the registry. Nothing here changes anything."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

from mlxd.engines.engine import Engine
from mlxd.registry.decisions import DecisionLog
from mlxd.registry.entry import Entry
from mlxd.registry.errors import ModelRemoved
from mlxd.registry.explain import Plan, explain
from mlxd.registry.queue import in_order
from mlxd.registry.residency import MemoryReading, Purpose, Residency, Waiter
from mlxd.registry.snapshot import Decision, ModelSnapshot
from mlxd.registry.spec import ModelSpec
from mlxd.registry.states import State
from mlxd.registry.views import snapshot


class RegistryReader(ABC):
    """The reading half of the registry. `clock` is monotonic, `wall_clock` counts from the epoch; seconds.

    Every method that takes a name raises ModelRemoved for one that is not known (any more).
    """

    def __init__(self, clock: Callable[[], float], wall_clock: Callable[[], float]) -> None:
        self._clock = clock
        self._wall_clock = wall_clock
        self._entries: dict[str, Entry] = {}
        self.decisions = DecisionLog(wall_clock)

    @property
    @abstractmethod
    def _state(self) -> Residency: ...

    @abstractmethod
    def _read_memory(self, *, fresh: bool) -> MemoryReading: ...

    def models(self) -> list[ModelSnapshot]:
        """All known models, by name."""
        queued = Counter(waiter.model for waiter in self._waiting())
        return [self._snapshot(self._entries[name], queued[name]) for name in sorted(self._entries)]

    def model(self, name: str) -> ModelSnapshot:
        """One model now."""
        entry = self._entry(name)
        return self._snapshot(entry, sum(1 for waiter in self._waiting() if waiter.model == name))

    def spec(self, name: str) -> ModelSpec:
        """What is known of a model whatever becomes of it: no snapshot of its state is made for that."""
        return self._entry(name).spec

    def loaded(self, name: str) -> tuple[float, float] | None:
        """When a model that is ready was loaded, on the registry's clock, and the seconds that this took."""
        entry = self._entry(name)
        if self._state.models[name].state is not State.READY or entry.loaded_at is None or entry.load_seconds is None:
            return None
        return entry.loaded_at, entry.load_seconds

    def explain(self, name: str, *, operator: bool = False) -> Plan:
        """What would happen if a request, or an operator, asked for this model now."""
        now = replace(self._state, memory=self._read_memory(fresh=False))
        return explain(now, name, self._clock(), operator=operator)

    def waiting(self) -> tuple[Waiter, ...]:
        """Who waits for a model, the next one first."""
        return in_order(self._state)

    def names(self, *states: State) -> tuple[str, ...]:
        """The models that are in one of these states, the last used first."""
        models = [model for model in self._state.models.values() if model.state in states]
        return tuple(model.name for model in sorted(models, key=lambda model: model.last_used, reverse=True))

    def engines(self) -> dict[str, Engine]:
        """The engines of models that are loaded."""
        loaded = {name: entry.engine for name, entry in self._entries.items() if entry.loaded_at is not None}
        return {name: engine for name, engine in loaded.items() if engine is not None}

    def staying_for(self, name: str) -> dict[str, int]:
        """What stays whatever leaves for this model's requests: itself and pinned models, with the bytes of their
        weights.
        """
        state = self._state
        pinned = [other for other in self.engines() if other != name and state.models[other].pinned]
        return {one: self._entry(one).weight_bytes for one in (name, *pinned)}

    def unread_bytes(self, name: str) -> int:
        """Bytes that a load in progress has still to take; 0 for models that are not on their way."""
        entry, model = self._entries.get(name), self._state.models.get(name)
        if entry is None or model is None or entry.progress is None or model.state is not State.LOADING:
            return 0
        return max(0, model.admitted - entry.progress.bytes_done)

    @property
    def closing(self) -> bool:
        """Whether the daemon stops: nothing is admitted any more."""
        return self._state.closing

    @property
    def has_engines(self) -> bool:
        """Whether any model is loaded, on its way in or on its way out."""
        return any(entry.engine is not None for entry in self._entries.values())

    def last_decisions(self, limit: int) -> list[Decision]:
        """The newest decisions, oldest first."""
        return self.decisions.last(limit)

    def _waiting(self) -> Iterator[Waiter]:
        """Who waits beside the planner itself, in order of arrival."""
        return (waiter for waiter in self._state.waiters if waiter.purpose is not Purpose.PINNED)

    def _snapshot(self, entry: Entry, queued: int) -> ModelSnapshot:
        model = self._state.models[entry.spec.name]
        return snapshot(entry, model, queued, self._clock(), self._wall_clock())

    def _entry(self, name: str) -> Entry:
        try:
            return self._entries[name]
        except KeyError:
            raise ModelRemoved(name) from None
