"""Decides, on the engine's lane, which sequences run, and turns one batch step into outputs."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from mlxd.engines.backend import ModelRunner, RunnerStep
from mlxd.engines.errors import EngineDead, PrefillMemoryExceeded, RequestError, StepFailed
from mlxd.engines.sequence import Sequence
from mlxd.engines.types import (
    EngineConfig,
    PrefillEvictionRequest,
    Request,
    RequestOutput,
    RequestStatus,
)

Delivery = tuple[str, RequestOutput | Exception]


@dataclass(slots=True)
class StepResult:
    """What one step has for the event loop, in order; `dead` ends the engine."""

    deliveries: list[Delivery] = field(default_factory=list)
    eviction: PrefillEvictionRequest | None = None
    dead: EngineDead | None = None

    def __bool__(self) -> bool:
        return bool(self.deliveries) or self.eviction is not None or self.dead is not None


@dataclass(frozen=True, slots=True)
class PrefillMemory:
    """How the scheduler sees memory; both in bytes.

    `needed` prices a prompt of so many tokens, `headroom` is what is left now, None for no limit.
    """

    needed: Callable[[int], int]
    headroom: Callable[[], int | None]


NO_MEMORY_LIMIT = PrefillMemory(needed=lambda _: 0, headroom=lambda: None)


class Scheduler:
    """Waiting and running sequences of one engine. Synchronous; used on the engine's lane only."""

    def __init__(
        self,
        runner: ModelRunner,
        config: EngineConfig,
        memory: PrefillMemory = NO_MEMORY_LIMIT,
        reclaim: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runner = runner
        self._config = config
        self._memory = memory
        self._reclaim = reclaim
        self._clock = clock
        self._waiting: deque[Sequence] = deque()
        self._running: dict[int, Sequence] = {}
        self._failures = 0
        self.prompt_tokens = 0
        self.completion_tokens = 0

    @property
    def has_work(self) -> bool:
        """True while a step can make progress; a sequence that awaits room alone is no work."""
        return bool(self._running) or (bool(self._waiting) and not self._waiting[0].awaits_room)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def kv_bytes(self) -> int:
        return self._runner.kv_bytes

    def add(self, request: Request, arrived: float) -> None:
        """Queue a request; `arrived` is on this scheduler's clock."""
        room = self._config.context_length - len(request.prompt)
        wanted = request.sampling.max_tokens
        limit = room if wanted is None else min(wanted, room)
        self._waiting.append(Sequence(request, arrived, max_tokens=limit))

    def abort(self, request_id: str) -> None:
        """Forget a request whose reader is gone; unknown ids are ignored."""
        self._take_out(request_id)

    def cancel(self, request_id: str) -> StepResult:
        """End a request on purpose: its reader gets what was generated."""
        sequence = self._take_out(request_id)
        return StepResult([] if sequence is None else [(request_id, sequence.cancel())])

    def abort_all(self, error: Exception) -> StepResult:
        """End every request with `error`; the batch is empty afterwards."""
        sequences = [*self._running.values(), *self._waiting]
        self._runner.remove(list(self._running))
        self._running.clear()
        self._waiting.clear()
        return StepResult([(sequence.request.id, error) for sequence in sequences])

    def room_made(self, request_id: str) -> None:
        """The answer to a PrefillEvictionRequest has come; the memory is looked at again."""
        for sequence in self._waiting:
            if sequence.request.id == request_id:
                sequence.awaits_room = False

    def statuses(self) -> tuple[RequestStatus, ...]:
        """All live sequences, running ones first."""
        now = self._clock()
        return tuple(sequence.status(now) for sequence in (*self._running.values(), *self._waiting))

    def step(self) -> StepResult:
        """Admit what fits, run the batch once, and collect outputs. Never raises for a failing step."""
        result = StepResult()
        self._admit(result)
        if not self._running:
            return result
        try:
            step = self._runner.step()
        # Whatever MLX raises here has lost the batch's state, not the engine's.
        except Exception as error:  # noqa: BLE001
            self._fail_step(error, result)
            return result
        self._failures = 0
        self._book(step, result)
        return result

    def _admit(self, result: StepResult) -> None:
        while self._waiting and len(self._running) < self._config.max_running:
            sequence = self._waiting[0]
            if not self._has_room(sequence, result):
                return
            self._waiting.popleft()
            self._insert(sequence, result)

    def _insert(self, sequence: Sequence, result: StepResult) -> None:
        try:
            uid = self._runner.insert(sequence.request, sequence.max_tokens)
            text = self._runner.text_stream(sequence.request)
        # A sampler or detokenizer that cannot be made concerns this request alone.
        except Exception as error:  # noqa: BLE001
            result.deliveries.append((sequence.request.id, _failed(error)))
            return
        sequence.admit(uid, text, self._clock())
        self._running[uid] = sequence
        self.prompt_tokens += len(sequence.request.prompt)

    def _has_room(self, sequence: Sequence, result: StepResult) -> bool:
        """Whether a prompt may start. In order: it fits · room is asked for once · caches are given back ·
        it is held while running sequences will free memory · it is refused.
        """
        needed = self._memory.needed(len(sequence.request.prompt))
        headroom = self._memory.headroom()
        if headroom is None or needed <= headroom:
            return True
        sequence.waiting_for = "memory"
        if sequence.awaits_room:
            return False
        if not sequence.asked_for_room:
            sequence.asked_for_room = sequence.awaits_room = True
            result.eviction = PrefillEvictionRequest(sequence.request.id, needed, headroom, "prefill")
            return False
        if self._running:
            return False
        self._reclaim()
        headroom = self._memory.headroom()
        if headroom is None or needed <= headroom:
            return True
        self._waiting.popleft()
        refusal = PrefillMemoryExceeded(sequence.request.id, needed, max(0, headroom))
        result.deliveries.append((sequence.request.id, refusal))
        return False

    def _book(self, step: RunnerStep, result: StepResult) -> None:
        now = self._clock()
        for event in step.tokens:
            sequence = self._running.get(event.uid)
            if sequence is None:
                continue
            self.completion_tokens += 1
            try:
                output = sequence.take(event, now)
            # A detokenizer that cannot read a token concerns this request alone.
            except Exception as error:  # noqa: BLE001
                self._end(event.uid, in_batch=not event.is_last)
                result.deliveries.append((sequence.request.id, _failed(error)))
                continue
            if output is None:
                continue
            result.deliveries.append((sequence.request.id, output))
            if output.finish_reason is not None:
                self._end(event.uid, in_batch=not event.is_last)

    def _end(self, uid: int, *, in_batch: bool) -> None:
        del self._running[uid]
        if in_batch:
            self._runner.remove([uid])

    def _take_out(self, request_id: str) -> Sequence | None:
        for uid, sequence in self._running.items():
            if sequence.request.id == request_id:
                self._end(uid, in_batch=True)
                return sequence
        for sequence in self._waiting:
            if sequence.request.id == request_id:
                self._waiting.remove(sequence)
                return sequence
        return None

    def _fail_step(self, error: Exception, result: StepResult) -> None:
        failed = _failed(error)
        result.deliveries += [(sequence.request.id, failed) for sequence in self._running.values()]
        self._running.clear()
        self._runner.rebuild()
        self._failures += 1
        if self._failures < self._config.max_step_failures:
            return
        result.dead = EngineDead(f"{self._failures} steps in a row failed; the last: {error}")
        result.deliveries += self.abort_all(result.dead).deliveries


def _failed(error: Exception) -> RequestError:
    failure = StepFailed(f"generation failed: {type(error).__name__}: {error}")
    failure.__cause__ = error.with_traceback(None)  # frames of a failed step hold the batch's arrays
    return failure
