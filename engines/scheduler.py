"""Decides, on the engine's lane, which sequences run, and turns one batch step into outputs."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from mlxd.engines.admission import Admission
from mlxd.engines.backend import ModelRunner, RunnerStep
from mlxd.engines.errors import EngineDead, PrefillMemoryExceeded, RequestError, StepFailed
from mlxd.engines.prefill_room import NO_MEMORY_LIMIT, PrefillMemory, PrefillRoom, Room
from mlxd.engines.sequence import Sequence
from mlxd.engines.types import (
    DraftStats,
    EngineConfig,
    EngineLimits,
    PrefillEvictionRequest,
    Request,
    RequestOutput,
    RequestStatus,
)

Delivery = tuple[Request, RequestOutput | Exception]


@dataclass(slots=True)
class StepResult:
    """What one step has for the event loop, in order; `dead` ends the engine.

    `freed` is, for each request that was given up, the seconds from that until its slot and KV were free.
    """

    deliveries: list[Delivery] = field(default_factory=list)
    eviction: PrefillEvictionRequest | None = None
    dead: EngineDead | None = None
    freed: tuple[float, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.deliveries or self.freed) or self.eviction is not None or self.dead is not None


class Scheduler:
    """Waiting and running sequences of one engine. Synchronous; used on the engine's lane only.

    `on_restored` is called on another thread when the disk has answered for a request; `restored` follows.
    """

    def __init__(
        self,
        runner: ModelRunner,
        config: EngineConfig,
        *,
        memory: PrefillMemory = NO_MEMORY_LIMIT,
        reclaim: Callable[[], None] = lambda: None,
        on_restored: Callable[[str, Any], None] = lambda *_: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runner = runner
        self._config = config
        self._admission = Admission(runner, config)
        self._room = PrefillRoom(memory, runner, reclaim)
        self._on_restored = on_restored
        self._clock = clock
        self._waiting: deque[Sequence] = deque()
        self._running: dict[int, Sequence] = {}
        self._failures = 0
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.cached_tokens = 0
        runner.prefixes.use_headroom(memory.headroom)

    @property
    def has_work(self) -> bool:
        """True while a step can make progress; sequences that await room or the disk alone are no work."""
        first = next((sequence for sequence in self._waiting if not sequence.awaits_prefix), None)
        return bool(self._running) or (first is not None and not first.awaits_room)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def kv_bytes(self) -> int:
        return self._runner.kv_bytes

    @property
    def prefix_cache_bytes(self) -> int:
        return self._runner.prefixes.nbytes

    @property
    def draft(self) -> DraftStats | None:
        return self._runner.draft

    def retune(self, limits: EngineLimits) -> None:
        """Other limits from the next step on; what runs goes on, even if that is more than `max_running`."""
        self._admission.retune(limits)
        self._runner.retune(limits)

    def trim_prefix_cache(self, max_bytes: int) -> None:
        """Keep at most so many bytes of processed prompts."""
        self._runner.prefixes.trim(max_bytes)

    def add(self, request: Request, arrived: float) -> None:
        """Queue a request; `arrived` is on this scheduler's clock."""
        room = self._config.context_length - len(request.prompt)
        wanted = request.sampling.max_tokens
        limit = room if wanted is None else min(wanted, room)
        sequence = Sequence(request, arrived, max_tokens=limit)
        sequence.awaits_prefix = self._runner.prefixes.restore(sequence.tokens, partial(self._on_restored, request.id))
        self._waiting.append(sequence)

    def abort(self, request_id: str) -> bool:
        """Forget a request whose reader is gone; False when it is not here any more."""
        return self._take_out(request_id) is not None

    def settle(self) -> None:
        """Free the memory of what was given up now, rather than with the next step."""
        self._runner.settle()

    def cancel(self, request_id: str) -> StepResult:
        """End a request on purpose: its reader gets what was generated."""
        sequence = self._take_out(request_id)
        return StepResult([] if sequence is None else [(sequence.request, _last_output(sequence))])

    def abort_all(self, error: Exception) -> StepResult:
        """End every request with `error`; the batch is empty afterwards."""
        sequences = [*self._running.values(), *self._waiting]
        self._runner.remove(list(self._running), keep=False)
        self._running.clear()
        self._waiting.clear()
        return StepResult([(sequence.request, error) for sequence in sequences])

    def room_made(self, request_id: str) -> None:
        """The answer to a PrefillEvictionRequest has come; the memory is looked at again."""
        for sequence in self._waiting:
            if sequence.request.id == request_id:
                sequence.awaits_room = False

    def restored(self, request_id: str, prefix: Any) -> None:
        """What the disk had for a request is here; the request may be gone meanwhile."""
        self._runner.prefixes.adopt(prefix)
        for sequence in self._waiting:
            if sequence.request.id == request_id:
                sequence.awaits_prefix = False

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
        self._drop_failed(step, result)
        return result

    def _admit(self, result: StepResult) -> None:
        promised = 0
        while self._waiting:
            sequence = self._admission.next(self._waiting, self._running.values())
            if sequence is None:
                return
            verdict = self._room.look(sequence, promised, others_run=bool(self._running))
            if isinstance(verdict, PrefillEvictionRequest):
                result.eviction = verdict
            if isinstance(verdict, PrefillMemoryExceeded):
                self._waiting.remove(sequence)
                result.deliveries.append((sequence.request, verdict))
                continue
            if verdict is not Room.FREE:
                return
            self._waiting.remove(sequence)
            if self._insert(sequence, result):
                promised += self._room.needed(sequence)

    def _insert(self, sequence: Sequence, result: StepResult) -> bool:
        try:
            # the text first: a row that is in the batch must have a sequence
            text = self._runner.text_stream(sequence.request)
            admitted = self._runner.insert(sequence.request, sequence.max_tokens)
        # A sampler or detokenizer that cannot be made concerns this request alone.
        except Exception as error:  # noqa: BLE001
            result.deliveries.append((sequence.request, _failed(error)))
            return False
        sequence.admit(admitted, text, self._clock())
        self._running[admitted.uid] = sequence
        self.prompt_tokens += len(sequence.request.prompt)
        self.cached_tokens += admitted.cached_tokens
        return True

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
                result.deliveries.append((sequence.request, _failed(error)))
                continue
            if output is None:
                continue
            result.deliveries.append((sequence.request, output))
            if output.finish_reason is not None:
                self._end(event.uid, in_batch=not event.is_last)

    def _drop_failed(self, step: RunnerStep, result: StepResult) -> None:
        # after the tokens: one that ended a sequence makes what went wrong behind it nobody's concern
        for uid, error in step.failed:
            sequence = self._running.pop(uid, None)
            if sequence is not None:
                result.deliveries.append((sequence.request, _failed(error)))

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
        # one for each: a reader adds its own frames to what it raises
        result.deliveries += [(sequence.request, _failed(error)) for sequence in self._running.values()]
        self._running.clear()
        self._runner.rebuild()
        self._failures += 1
        if self._failures < self._config.max_step_failures:
            return
        result.dead = EngineDead(f"{self._failures} steps in a row failed; the last: {error}")
        result.deliveries += self.abort_all(result.dead).deliveries


def _last_output(sequence: Sequence) -> RequestOutput | Exception:
    try:
        return sequence.cancel()
    # A detokenizer that cannot end its text concerns this request alone.
    except Exception as error:  # noqa: BLE001
        return _failed(error)


def _failed(error: Exception) -> RequestError:
    if isinstance(error, RequestError):
        return error
    failure = StepFailed(f"generation failed: {type(error).__name__}: {error}")
    failure.__cause__ = error.with_traceback(None)  # frames of a failed step hold the batch's arrays
    return failure
