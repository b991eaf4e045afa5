"""The loop of a text engine: sequences on a ModelRunner, and the price of its prompts."""

from __future__ import annotations

from mlxd.engines.backend import Backend, ModelRunner
from mlxd.engines.load_watch import LoadWatch
from mlxd.engines.loop import EngineLoop
from mlxd.engines.messages import MemoryChanged, Message, Restored
from mlxd.engines.prompt_price import PromptPrice
from mlxd.engines.scheduler import Scheduler
from mlxd.engines.types import EngineStats


class TextLoop(EngineLoop[ModelRunner, Scheduler]):
    """Generates text on a lane. `price` is for other threads too."""

    price = PromptPrice()

    def _load(self, backend: Backend, watch: LoadWatch) -> ModelRunner:
        runner = backend.load(self._config, watch)
        self.price = runner.price
        return runner

    def _scheduler(self, runner: ModelRunner, backend: Backend) -> Scheduler:
        return Scheduler(
            runner,
            self._config,
            memory=runner.share(self._memory),
            reclaim=backend.reclaim,
            on_memory=lambda: self._inbox.put(MemoryChanged()),
            on_restored=lambda request_id, prefix: self._inbox.put(Restored(request_id, prefix)),
            clock=self._clock,
        )

    def _apply(self, scheduler: Scheduler, message: Message) -> None:
        if isinstance(message, Restored):
            scheduler.restored(message.request_id, message.prefix)
        super()._apply(scheduler, message)

    def _figures(self, scheduler: Scheduler) -> EngineStats:
        self.price = scheduler.price
        return EngineStats(
            running=scheduler.running,
            waiting=scheduler.waiting,
            prompt_tokens=scheduler.prompt_tokens,
            completion_tokens=scheduler.completion_tokens,
            cached_tokens=scheduler.cached_tokens,
            decode_tps=sum(status.decode_tps or 0.0 for status in self.statuses),
            kv_bytes=scheduler.kv_bytes,
            promised_bytes=scheduler.promised_bytes,
            preempted=scheduler.preempted,
            prefix_cache_bytes=scheduler.prefix_cache_bytes,
            draft=scheduler.draft,
        )
