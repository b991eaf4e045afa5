"""The engine's loop on its lane: load, then drain the inbox and step until told to close, then drop the model.

Messages go in through the inbox, events come out through `post`, which is called on the lane.
"""

from __future__ import annotations

import queue
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, TypeVar

import structlog

from mlxd.engines.backend import Backend
from mlxd.engines.crowd import Crowd
from mlxd.engines.errors import EngineDead, LoadError, LoadFailure
from mlxd.engines.handover import Handover
from mlxd.engines.image_threads import ImageThreads
from mlxd.engines.lane_scheduler import LaneScheduler, LoadedRunner
from mlxd.engines.load_watch import LoadWatch
from mlxd.engines.memory_share import Stake
from mlxd.engines.messages import (
    Abort,
    AbortAll,
    Add,
    Cancel,
    Close,
    Closed,
    Inbox,
    Loaded,
    LoopEvent,
    MemoryChanged,
    Message,
    Retune,
    RoomMade,
    Trim,
    Trimmed,
)
from mlxd.engines.request_log import note_arrival, note_ends, note_gone
from mlxd.engines.step_result import StepResult
from mlxd.engines.turns import Turns
from mlxd.engines.types import EngineConfig, EngineStats, RequestStatus

log = structlog.stdlib.get_logger(__name__)

# Seconds between snapshots for status calls while the set of live requests stays the same.
NOTE_INTERVAL = 0.1
# Seconds that a snapshot may take for each change to have one, and what dearer ones may take of the lane's time: with a
# thousand requests that wait they take milliseconds.
CHEAP_NOTE = 0.0005
NOTE_SHARE = 0.05


R = TypeVar("R", bound=LoadedRunner)
S = TypeVar("S", bound=LaneScheduler)


class EngineLoop(ABC, Generic[R, S]):
    """Runs on a lane from load to drop. `stats`, `statuses`, `price` and `load_cancelled` are for other threads too;
    `on_note` is called on the lane when these have changed.

    What differs between kinds of models is in the methods that are abstract here.
    """

    price: Any

    def __init__(
        self,
        config: EngineConfig,
        inbox: Inbox,
        post: Callable[[LoopEvent], None],
        *,
        memory: Stake,
        step_lock: AbstractContextManager[object],
        turns: Turns,
        crowd: Crowd,
        images: ImageThreads,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._inbox = inbox
        self._post = post
        self._handover = Handover(post)
        self._memory = memory
        self._step_lock = step_lock
        self._turns = turns
        self._crowd = crowd
        self._images = images
        self._stretch_begun = 0.0
        self._clock = clock
        self._busy_since: float | None = None
        self._at_work = False
        self._noted_live = (0, 0)
        self._noted_at = float("-inf")
        self._note_cost = 0.0
        self._given_up: list[float] = []
        self.load_cancelled = False
        self.on_note: Callable[[], None] = lambda: None
        self.stats = EngineStats()
        self.statuses: tuple[RequestStatus, ...] = ()

    @abstractmethod
    def _load(self, backend: Backend, watch: LoadWatch) -> R:
        """Load the model. Raises LoadError."""

    @abstractmethod
    def _scheduler(self, runner: R, backend: Backend) -> S:
        """What decides over the model's steps."""

    @abstractmethod
    def _figures(self, scheduler: S) -> EngineStats:
        """What the scheduler counts, but for the heartbeat."""

    def run(self, open_backend: Callable[[], Backend]) -> None:
        """The lane's job. Its last event is exactly one of LoadError and Closed, and it never raises."""
        backend: Backend | None = None
        failure: LoadError | None = None
        try:
            backend = open_backend()
            self._stretch_begun = self._clock()
            between = self._between_pieces if backend.shares_processor else lambda: self.load_cancelled
            with self._crowd.entered():
                # whoever has the lock of all steps waits in vain for others to finish theirs
                turns = self._turns if isinstance(self._step_lock, nullcontext) else None
                watch = LoadWatch(self._post, between, self._crowd, turns, self._images, self._post)
                runner = self._load(backend, watch)
        # Whatever goes wrong here must reach the waiters; the lane itself has to survive it.
        except Exception as error:  # noqa: BLE001
            failure = _load_error(error)
        if failure is not None:
            with self._crowd.entered():
                self._tidy(None, backend)
            self._post(failure)
            return
        assert backend is not None
        self._post(Loaded(runner.info, runner.tokenizer))
        self._serve(runner, backend)
        with self._crowd.entered():
            self._tidy(runner, None)
            del runner
            self._tidy(None, backend)
        self._post(Closed())

    def _between_pieces(self) -> bool:
        """Step aside for engines at work; whether the load was cancelled."""
        if self._turns.step_aside(self._clock() - self._stretch_begun):
            self._stretch_begun = self._clock()
        return self.load_cancelled

    def _work(self) -> None:
        if not self._at_work:
            self._turns.begin()
        self._at_work = True
        self._busy_since = self._clock()

    def _rest(self) -> None:
        if self._at_work:
            self._turns.end()
        self._at_work = False
        self._busy_since = None

    def _tidy(self, runner: R | None, backend: Backend | None) -> None:
        """Close and give back; a fault there must not keep the last event from those who wait for it."""
        try:
            if runner is not None:
                runner.close()
            if backend is not None:
                backend.reclaim()
        except Exception:
            log.exception("engine.close_failed", model=self._config.name)

    def heartbeat_age(self) -> float:
        """Seconds since the loop last came round; 0 while it has nothing to do."""
        busy_since = self._busy_since
        return 0.0 if busy_since is None else self._clock() - busy_since

    def _serve(self, runner: R, backend: Backend) -> None:
        try:
            self._run(self._scheduler(runner, backend))
        # A fault outside a step is ours; the engine ends with it, the lane and the daemon go on.
        except Exception as error:
            log.exception("engine.loop_failed", model=self._config.name)
            dead = EngineDead(f"the engine loop failed: {type(error).__name__}: {error}")
            self._publish(StepResult(dead=dead))
        self._memory.forget()
        self._rest()

    def _run(self, scheduler: S) -> None:
        while True:
            closing = self._drain(scheduler)
            self._settle(scheduler)
            if closing is not None:
                self._publish(scheduler.abort_all(closing.error))
                self._note(scheduler)
                return
            self._work()
            if scheduler.takes_its_time:
                self._handover.flush()
            with self._step_lock, self._crowd.entered():
                result = scheduler.step()
            self._note(scheduler)
            self._publish(result)
            if result.dead is not None:
                return
            if scheduler.has_finished:
                with self._step_lock, self._crowd.entered():
                    scheduler.keep_finished()
            # its requests may hold large images, and the next message may be long in coming
            del result

    def _drain(self, scheduler: S) -> Close | None:
        """Apply what came in; block while there is nothing to step."""
        while True:
            was_idle = not scheduler.has_work
            if was_idle:
                self._handover.flush()
                self._settle(scheduler)
                self._note(scheduler, now=True)  # what it waits for may be for long
            message = self._next_message(idle=was_idle)
            if message is None:
                return None
            if isinstance(message, Close):
                return message
            self._apply(scheduler, message)
            if was_idle and isinstance(message, Add) and not message.request.alone:
                closing = self._gather_burst(scheduler)
                if closing is not None:
                    return closing

    def _next_message(self, *, idle: bool) -> Message | None:
        if idle:
            self._rest()
            message = self._inbox.get()
            self._busy_since = self._clock()  # what a message takes shows in the heartbeat too
            return message
        try:
            return self._inbox.get_nowait()
        except queue.Empty:
            return None

    def _gather_burst(self, scheduler: S) -> Close | None:
        # Rows that start together prefill and decode as one aligned batch.
        until = time.monotonic() + self._config.burst_window
        while (left := until - time.monotonic()) > 0:
            try:
                message = self._inbox.get(timeout=left)
            except queue.Empty:
                return None
            if isinstance(message, Close):
                return message
            self._apply(scheduler, message)
        return None

    def _apply(self, scheduler: S, message: Message) -> None:
        match message:
            case Add(request, arrived):
                note_arrival(self._config.name, request)
                scheduler.add(request, arrived)
            case Abort() | Cancel() | AbortAll():
                with self._crowd.entered():
                    self._give_up(scheduler, message)
            case RoomMade(request_id):
                scheduler.room_made(request_id)
            case MemoryChanged():
                scheduler.memory_changed()
            case Retune(limits):
                scheduler.retune(limits)
            case Trim(max_bytes):
                with self._crowd.entered():
                    scheduler.trim_prefix_cache(max_bytes)
                self._note(scheduler, now=True)
                self._post(Trimmed())
        self._note(scheduler)

    def _give_up(self, scheduler: S, message: Abort | Cancel | AbortAll) -> None:
        match message:
            case Abort(request_id, at):
                if scheduler.abort(request_id):
                    note_gone(self._config.name, request_id)
                    self._given_up.append(at)
            case Cancel(request_id, at):
                result = scheduler.cancel(request_id)
                if result:
                    self._given_up.append(at)
                self._publish(result)
            case AbortAll(error):
                self._publish(scheduler.abort_all(error))
                scheduler.settle()

    def _settle(self, scheduler: S) -> None:
        """Free what was given up, all at once, and tell how long that took since it was."""
        if not self._given_up:
            return
        with self._crowd.entered():
            scheduler.settle()
        now = self._clock()
        self._publish(StepResult(freed=tuple(now - at for at in self._given_up)))
        self._given_up.clear()
        self._note(scheduler)

    def _publish(self, result: StepResult) -> None:
        if result:
            note_ends(self._config.name, result.deliveries)
            self._handover.put(result)

    def _note(self, scheduler: S, *, now: bool = False) -> None:
        moment = self._clock()
        live = (scheduler.running, scheduler.waiting)
        rests = NOTE_INTERVAL
        if live != self._noted_live:
            rests = 0.0 if self._note_cost < CHEAP_NOTE else self._note_cost / NOTE_SHARE
        if not now and moment - self._noted_at < rests:
            return
        self._noted_live, self._noted_at = live, moment
        # Replaced whole, so that readers on other threads never see half an update.
        self.statuses = scheduler.statuses()
        self.stats = self._figures(scheduler)
        self.on_note()
        self._note_cost = self._clock() - moment


def _load_error(error: Exception) -> LoadError:
    """A fresh error without traceback or cause: their frames would keep the weights alive."""
    if isinstance(error, LoadError):
        return LoadError(error.reason, str(error))
    if isinstance(error, MemoryError):
        return LoadError(LoadFailure.OUT_OF_MEMORY, f"out of memory: {error}")
    return LoadError(LoadFailure.INTERNAL, f"{type(error).__name__}: {error}")
