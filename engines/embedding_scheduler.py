"""Decides, on the engine's lane, which inputs run together, and turns one step into answers."""

from __future__ import annotations

import time
from collections.abc import Callable

from mlxd.engines.backend import EncoderRunner
from mlxd.engines.embedding_pace import EmbeddingPace
from mlxd.engines.embedding_queue import InputQueue, Item, Work
from mlxd.engines.embedding_room import EmbeddingRoom
from mlxd.engines.embedding_types import EmbeddingOutput, EmbeddingRequest
from mlxd.engines.errors import EngineDead, RequestError, StepFailed
from mlxd.engines.memory_share import MemoryShare, Stake
from mlxd.engines.step_result import StepResult, failed
from mlxd.engines.transients import Transients
from mlxd.engines.types import EngineConfig, EngineLimits, PrefillEvictionRequest, RequestStatus


class EmbeddingScheduler:
    """The requests of one embedding engine. Synchronous; used on the engine's lane only.

    Without `memory` there is no limit. `on_memory` is called, on any thread, when memory may have come free for a
    request that waits for it; `memory_changed` follows.
    """

    def __init__(
        self,
        runner: EncoderRunner,
        config: EngineConfig,
        *,
        memory: Stake | None = None,
        reclaim: Callable[[], None] = lambda: None,
        on_memory: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runner = runner
        self._config = config
        self._stake = stake = MemoryShare().stake(config.name) if memory is None else memory
        self._room = EmbeddingRoom(stake, reclaim, config.limits, on_memory)
        self._pace = EmbeddingPace(config.limits, config.prefill_batch)
        self._queue = InputQueue()
        self._clock = clock
        self._failures = 0
        self.prompt_tokens = 0

    @property
    def has_work(self) -> bool:
        """True while a step can make progress."""
        return any(work.awaits is None for work in self._queue)

    @property
    def has_finished(self) -> bool:
        return False

    def keep_finished(self) -> None:
        """Nothing is kept."""

    @property
    def takes_its_time(self) -> bool:
        """Every step is a batch of whole inputs."""
        return True

    @property
    def running(self) -> int:
        """Requests that have begun."""
        return sum(work.started for work in self._queue)

    @property
    def waiting(self) -> int:
        return len(self._queue) - self.running

    @property
    def price(self) -> Transients:
        """What batches take, as far as it is known."""
        return self._runner.transients

    def add(self, request: EmbeddingRequest, arrived: float) -> None:
        """Queue a request; `arrived` is on this scheduler's clock."""
        self._queue.add(Work.of(request, arrived))

    def abort(self, request_id: str) -> bool:
        """Forget a request whose reader is gone; False when it is not here any more."""
        return self._take_out(request_id) is not None

    def cancel(self, request_id: str) -> StepResult:
        """End a request on purpose: its reader gets the vectors that were made."""
        work = self._take_out(request_id)
        return StepResult([] if work is None else [(work.request, work.output(self._clock(), cancelled=True))])

    def abort_all(self, error: Exception) -> StepResult:
        """End every request with `error`."""
        works = list(self._queue)
        for work in works:
            self._queue.remove(work)
        self._promise()
        return StepResult([(work.request, error) for work in works])

    def settle(self) -> None:
        """Nothing is kept between steps."""

    def retune(self, limits: EngineLimits) -> None:
        """Other limits from the next step on."""
        self._room.retune(limits)
        self._pace.retune(limits)

    def trim_prefix_cache(self, max_bytes: int) -> None:
        """Nothing is kept of texts."""

    def room_made(self, request_id: str) -> None:
        """The answer to a PrefillEvictionRequest has come; the memory is looked at again."""
        work = self._queue.get(request_id)
        if work is not None and work.awaits == "room":
            # counted from the answer, as in the text scheduler
            work.awaits, work.asked_at = None, self._clock()

    def memory_changed(self) -> None:
        """Others have given memory back, or time has passed: requests that wait for it are looked at again."""
        for work in self._queue:
            if work.awaits == "memory":
                work.awaits = None

    def statuses(self) -> tuple[RequestStatus, ...]:
        """All live requests, those that have begun first."""
        now = self._clock()
        ordered = sorted(self._queue, key=lambda work: (not work.started, work.arrived))
        return tuple(work.status(now) for work in ordered)

    def step(self) -> StepResult:
        """Run one batch. Never raises for a failing step."""
        result = StepResult()
        batch = self._queue.take(self._pace.tokens(slow=self._stake.brake.slow))
        try:
            batch = self._fitting(batch, result)
            if batch:
                self._run(batch, result)
        # Whatever MLX or a memory probe raises here has lost the batch, not the engine.
        except Exception as error:  # noqa: BLE001
            self._fail_step(batch, error, result)
        # without a batch too: whoever is held here must not be waited for elsewhere
        self._promise()
        return result

    def _fitting(self, batch: list[Item], result: StepResult) -> list[Item]:
        """As much of a batch as there is memory for; the rest waits on."""
        rows = self._room.fitting(batch, self.price)
        if rows or not batch:
            self._queue.put_back(batch[rows:])
            return batch[:rows]
        first = batch[0]
        verdict = self._room.look(first, self.price, self._clock())
        if isinstance(verdict, RequestError):
            self._end(first.work, verdict, result)
        if isinstance(verdict, PrefillEvictionRequest):
            result.eviction = verdict
        self._queue.put_back(batch if verdict is not None else batch[1:])
        return [] if verdict is not None else [first]

    def _run(self, batch: list[Item], result: StepResult) -> None:
        started = self._clock()
        vectors = self._runner.run([item.input for item in batch])
        self._failures = 0
        now = self._clock()
        self._pace.observe(len(batch) * max(len(item.input) for item in batch), now - started)
        for item, vector in zip(batch, vectors, strict=True):
            work = item.work
            if vector is None:
                self._end(work, StepFailed("the model gave numbers that are not finite"), result)
                continue
            self.prompt_tokens += len(item.input)
            work.finish(item.number, vector)
            work.held_since = work.asked_at = None
            if not work.left:
                self._end(work, work.output(now), result)

    def _fail_step(self, batch: list[Item], error: Exception, result: StepResult) -> None:
        """A batch of one request fails with it. Those of several are tried again, each by itself."""
        works = list(dict.fromkeys(item.work for item in batch))
        if len(works) == 1:
            self._end(works[0], failed(error), result)
        else:
            self._queue.put_back(batch)
            for work in works:
                work.alone = True
        self._failures += 1
        if self._failures < self._config.max_step_failures:
            return
        result.dead = EngineDead(f"{self._failures} steps in a row failed; the last: {error}")
        result.deliveries += self.abort_all(result.dead).deliveries

    def _end(self, work: Work, item: EmbeddingOutput | Exception, result: StepResult) -> None:
        # several of its inputs may have failed in one batch
        if self._queue.get(work.request.id) is work:
            self._queue.remove(work)
            result.deliveries.append((work.request, item))

    def _take_out(self, request_id: str) -> Work | None:
        work = self._queue.get(request_id)
        if work is not None:
            self._queue.remove(work)
            self._promise()
        return work

    def _promise(self) -> None:
        """Between steps nothing is taken; others are told whether there will be more steps."""
        self._stake.set(0, sum(work.awaits is None for work in self._queue))
