"""One model's live side: its engine and what is known of its load. Only the registry changes it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from mlxd.engines.engine import Engine
from mlxd.engines.errors import ModelOwnershipError
from mlxd.engines.types import EngineStats, LoadProgress, ModelInfo
from mlxd.registry.events import EngineDied
from mlxd.registry.patience import Patience
from mlxd.registry.residency import Held
from mlxd.registry.snapshot import LoadStatus
from mlxd.registry.spec import ModelSpec

# Below this many seconds of loading a rate says nothing.
_ETA_AFTER = 0.25


@dataclass(slots=True)
class Entry:
    """A known model with at most one engine. `moment` arguments are monotonic seconds."""

    spec: ModelSpec
    engine: Engine | None = None
    patience: Patience | None = None
    progress: LoadProgress | None = None
    load_started: float | None = None
    first_bytes_at: float | None = None
    load_seconds: float | None = None
    loaded_at: float | None = None
    info: ModelInfo | None = None
    death: EngineDied | None = None
    last_freed: int = 0
    gone: list[asyncio.Future[None]] = field(default_factory=list)

    def own(self, engine: Engine, moment: float) -> None:
        """Take an engine for a load. Raises ModelOwnershipError when there is one already."""
        if self.engine is not None:
            raise ModelOwnershipError(f"model {self.spec.name} already has an engine")
        self.engine = engine
        self.progress = LoadProgress(0, self.spec.weight_bytes)
        self.load_started = moment
        self.first_bytes_at = None

    def advance(self, progress: LoadProgress, moment: float) -> None:
        """Bytes were read."""
        if self.first_bytes_at is None:
            self.first_bytes_at = moment
        self.progress = progress

    def loaded(self, info: ModelInfo, moment: float) -> None:
        """The load is done."""
        self.info = info
        self.load_seconds = moment - self.load_started if self.load_started is not None else None
        self.loaded_at = moment
        self.progress = None

    def disown(self, freed: int = 0) -> None:
        """The engine is gone and gave back `freed` bytes; whoever waits for that is told."""
        self.last_freed = freed
        self.engine = self.info = self.patience = self.death = None
        self.progress = self.load_started = self.loaded_at = None
        for future in self.gone:
            if not future.done():
                future.set_result(None)
        self.gone.clear()

    @property
    def weight_bytes(self) -> int:
        """Bytes of the loaded weights; 0 while there are none."""
        return self.info.weight_bytes if self.info is not None else 0

    def held(self) -> Held | None:
        """What the engine holds once the model is loaded, and what it has promised to its requests."""
        stats = self.stats()
        return Held(self.weight_bytes, stats.kv_bytes, stats.promised_bytes) if stats is not None else None

    @property
    def held_bytes(self) -> int:
        """Bytes of weights, KV cache and kept prefixes; 0 while the model is not loaded."""
        stats = self.stats()
        return self.weight_bytes + stats.kv_bytes + stats.prefix_cache_bytes if stats is not None else 0

    def stats(self) -> EngineStats | None:
        """The engine's figures once it is loaded."""
        return self.engine.stats() if self.engine is not None and self.loaded_at is not None else None

    def load_status(self, moment: float) -> LoadStatus | None:
        """The load in progress, with a time left once the rate is known."""
        if self.progress is None or self.load_started is None:
            return None
        return LoadStatus(self.progress, self._eta(self.progress, moment))

    def _eta(self, progress: LoadProgress, moment: float) -> float | None:
        if self.first_bytes_at is None or progress.bytes_done == 0:
            return None
        spent = moment - self.first_bytes_at
        if spent < _ETA_AFTER:
            return None
        return spent * (progress.bytes_total - progress.bytes_done) / progress.bytes_done
