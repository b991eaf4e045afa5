"""Decides, on the engine's lane, which sequences run, and turns one batch step into outputs."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from mlxd.engines.admission import Admission
from mlxd.engines.backend import ModelRunner, NewRow, RunnerStep
from mlxd.engines.errors import EngineDead, RequestError
from mlxd.engines.growth_room import GrowthRoom
from mlxd.engines.memory_share import MemoryShare, Stake
from mlxd.engines.pacer import FIRST_CHUNK
from mlxd.engines.prefill_room import PrefillRoom, Room
from mlxd.engines.prompt_price import PromptPrice
from mlxd.engines.request_log import note_preempted
from mlxd.engines.sequence import Sequence
from mlxd.engines.step_result import StepResult, failed, last_output
from mlxd.engines.types import (
    DraftStats,
    EngineConfig,
    EngineLimits,
    PrefillEvictionRequest,
    Request,
    RequestState,
    RequestStatus,
)

# Seconds between two notes for other engines of what the sequences of this one may still take.
PROMISE_INTERVAL = 0.1


class Scheduler:
    """Waiting and running sequences of one engine. Synchronous; used on the engine's lane only.

    Without `memory` there is no limit. `on_restored` is called on another thread when the disk has answered for a
    request; `restored` follows. `on_memory` is called, on any thread, when memory may have come free for a sequence
    that waits for it; `memory_changed` follows.
    """

    def __init__(
        self,
        runner: ModelRunner,
        config: EngineConfig,
        *,
        memory: Stake | None = None,
        reclaim: Callable[[], None] = lambda: None,
        on_restored: Callable[[str, Any], None] = lambda *_: None,
        on_memory: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runner = runner
        self._config = config
        self._admission = Admission(runner, config)
        self._stake = stake = MemoryShare().stake(config.name) if memory is None else memory
        self._room = PrefillRoom(stake, runner, reclaim, config.limits, on_memory)
        self._growth = GrowthRoom(stake, runner, reclaim)
        self._promised_at = float("-inf")
        self._on_restored = on_restored
        self._clock = clock
        self._waiting: deque[Sequence] = deque()
        self._running: dict[int, Sequence] = {}
        self._failures = 0
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.cached_tokens = 0
        self.promised_bytes = 0
        self.preempted = 0
        runner.prefixes.use_headroom(stake.spare)

    @property
    def has_work(self) -> bool:
        """True while a step can make progress; sequences that await room, memory or the disk alone are no work."""
        if self._growth.awaits_room:
            return False
        first = next((sequence for sequence in self._waiting if not sequence.awaits_prefix), None)
        return bool(self._running) or (first is not None and first.can_start)

    @property
    def takes_its_time(self) -> bool:
        """Whether the next step may do more than make a token for each of those that run: prompts."""
        if self._waiting and not self._admission.is_full(len(self._running)):
            return True
        return any(sequence.state is RequestState.PREFILLING for sequence in self._running.values())

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def price(self) -> PromptPrice:
        return self._runner.price

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
        self._room.retune(limits)
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
        return StepResult([] if sequence is None else [(sequence.request, last_output(sequence))])

    def abort_all(self, error: Exception) -> StepResult:
        """End every request with `error`; the batch is empty afterwards."""
        sequences = [*self._running.values(), *self._waiting]
        self._runner.remove(list(self._running), keep=False)
        self._running.clear()
        self._waiting.clear()
        self._runner.settle()
        self._growth.answered(self._clock())
        self._promise()
        return StepResult([(sequence.request, error) for sequence in sequences])

    def room_made(self, request_id: str) -> None:
        """The answer to a PrefillEvictionRequest has come; the memory is looked at again."""
        now = self._clock()
        if request_id == self._growth.asked_for:
            self._growth.answered(now)
        for sequence in self._waiting:
            if sequence.request.id == request_id and sequence.awaits_room:
                # counted from the answer: it may take longer than the time after which others are asked again
                sequence.awaits_room, sequence.asked_at = False, now

    def memory_changed(self) -> None:
        """Others have given memory back, or time has passed: sequences that wait for it are looked at again."""
        for sequence in self._waiting:
            sequence.awaits_memory = False

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
        self._runner.slow_down(FIRST_CHUNK if self._stake.brake.slow else None)
        try:
            self._make_room(result)
            if not self._running or self._growth.awaits_room:
                return result
            step = self._runner.step()
        # Whatever MLX raises here has lost the batch's state, not the engine's.
        except Exception as error:  # noqa: BLE001
            self._fail_step(error, result)
            return result
        self._failures = 0
        self._book(step, result)
        self._drop_failed(step, result)
        return result

    @property
    def has_finished(self) -> bool:
        return self._runner.has_finished

    def keep_finished(self) -> None:
        """Keep the prefixes of what has ended."""
        self._runner.keep_finished()

    def _make_room(self, result: StepResult) -> None:
        # what runs first: else a prompt could take the room, only to be the newest that gives way
        if self._runner.is_full:
            self._make_growth_room(result)
        if not self._growth.awaits_room:
            self._admit(result)
        if self._clock() - self._promised_at >= PROMISE_INTERVAL:
            self._promise()

    def _admit(self, result: StepResult) -> None:
        while self._waiting:
            sequence = self._admission.next(self._waiting, self._running.values())
            if sequence is None:
                return
            verdict = self._room.look(sequence, self._clock(), others_here=bool(self._running))
            if isinstance(verdict, PrefillEvictionRequest):
                result.eviction = verdict
            if isinstance(verdict, RequestError):
                self._waiting.remove(sequence)
                result.deliveries.append((sequence.request, verdict))
                continue
            if verdict is not Room.FREE:
                return
            self._waiting.remove(sequence)
            self._insert(sequence, result)

    def _insert(self, sequence: Sequence, result: StepResult) -> None:
        again = sequence.text is not None
        try:
            # the text first: a row that is in the batch must have a sequence
            text = sequence.text or self._runner.text_stream(sequence.request)
            row = NewRow(sequence.request, sequence.pending, sequence.left, sequence.chunk)
            admitted = self._runner.insert(row)
        # A sampler or detokenizer that cannot be made concerns this request alone.
        except Exception as error:  # noqa: BLE001
            self._promised_at = float("-inf")  # its bytes are promised already
            result.deliveries.append((sequence.request, failed(error)))
            return
        sequence.admit(admitted, text, self._clock())
        self._running[admitted.uid] = sequence
        if not again:
            self.prompt_tokens += len(sequence.request.prompt)
            self.cached_tokens += admitted.cached_tokens

    def _make_growth_room(self, result: StepResult) -> None:
        """Rows that have filled their buffers get longer ones; the last that came give way when there is no memory."""
        while not self._growth.fits():
            if self._growth.may_ask(self._clock()):
                result.eviction = self._growth.ask(self._oldest(), self._clock())
                return
            if len(self._running) == 1:
                return
            self._preempt(max(self._running, key=lambda uid: self._running[uid].arrived))

    def _oldest(self) -> Sequence:
        return min(self._running.values(), key=lambda sequence: sequence.arrived)

    def _preempt(self, uid: int) -> None:
        sequence = self._running.pop(uid)
        # first: a fault in what follows must not lose it
        sequence.preempt()
        self._waiting.appendleft(sequence)
        self._runner.remove([uid], keep=False)
        self._runner.settle()
        self.preempted += 1
        note_preempted(self._config.name, sequence.request.id, len(sequence.pending), len(self._running))

    def _promise(self) -> None:
        """Tell other engines what the running sequences may still take."""
        self._promised_at = self._clock()
        chunk = max(
            (one.chunk for one in self._running.values() if one.state is RequestState.PREFILLING),
            default=FIRST_CHUNK,
        )
        self.promised_bytes = self._runner.demand(None, chunk) if self._running else 0
        self._stake.set(self.promised_bytes, len(self._running))

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
                result.deliveries.append((sequence.request, failed(error)))
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
                self._departed()
                result.deliveries.append((sequence.request, failed(error)))

    def _end(self, uid: int, *, in_batch: bool) -> None:
        del self._running[uid]
        if in_batch:
            self._runner.remove([uid])
        # last: whoever is told that nobody runs here looks at the memory
        self._departed()

    def _departed(self) -> None:
        # what it promised is free with the next look, and tells the others so; behind the last one no look may come
        self._promised_at = float("-inf")
        if not self._running:
            self._promise()
        if self._growth.awaits_room:
            self._growth.answered(self._clock())
        for sequence in self._waiting:
            sequence.awaits_departure = sequence.awaits_memory = False

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
        result.deliveries += [(sequence.request, failed(error)) for sequence in self._running.values()]
        self._running.clear()
        self._runner.rebuild()
        self._departed()
        self._failures += 1
        if self._failures < self._config.max_step_failures:
            return
        result.dead = EngineDead(f"{self._failures} steps in a row failed; the last: {error}")
        result.deliveries += self.abort_all(result.dead).deliveries
