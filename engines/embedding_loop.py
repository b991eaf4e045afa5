"""The loop of an embedding engine: inputs on an EncoderRunner, and the price of its batches."""

from __future__ import annotations

from mlxd.engines.backend import Backend, EncoderRunner
from mlxd.engines.embedding_scheduler import EmbeddingScheduler
from mlxd.engines.load_watch import LoadWatch
from mlxd.engines.loop import EngineLoop
from mlxd.engines.messages import MemoryChanged
from mlxd.engines.transients import Transients
from mlxd.engines.types import EngineStats


class EmbeddingLoop(EngineLoop[EncoderRunner, EmbeddingScheduler]):
    """Makes vectors and scores on a lane. `price` is for other threads too."""

    price = Transients()

    def _load(self, backend: Backend, watch: LoadWatch) -> EncoderRunner:
        runner = backend.load_encoder(self._config, watch)
        self.price = runner.transients
        return runner

    def _scheduler(self, runner: EncoderRunner, backend: Backend) -> EmbeddingScheduler:
        return EmbeddingScheduler(
            runner,
            self._config,
            memory=self._memory,
            reclaim=backend.reclaim,
            on_memory=lambda: self._inbox.put(MemoryChanged()),
            clock=self._clock,
        )

    def _figures(self, scheduler: EmbeddingScheduler) -> EngineStats:
        self.price = scheduler.price
        return EngineStats(running=scheduler.running, waiting=scheduler.waiting, prompt_tokens=scheduler.prompt_tokens)
