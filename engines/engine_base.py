"""What every engine has: a lane from load to close, requests that live on it, and how all of them end."""

from __future__ import annotations

import asyncio
import enum
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, NoReturn, Protocol

import structlog

from mlxd.engines.embedding import Embedding
from mlxd.engines.embedding_types import EmbeddingRequest
from mlxd.engines.engine_run import EngineHost, RunPlan
from mlxd.engines.errors import (
    EngineClosed,
    EngineDead,
    EngineQueueFull,
    LoadError,
    LoadFailure,
    MemoryRefusal,
    ModelOwnershipError,
    WrongModelKind,
)
from mlxd.engines.fingerprint import fingerprint
from mlxd.engines.generation import Generation
from mlxd.engines.loop import EngineLoop
from mlxd.engines.memory_share import MemoryShare, MemoryStake
from mlxd.engines.messages import (
    Abort,
    AbortAll,
    Add,
    Cancel,
    Close,
    Closed,
    Loaded,
    LoopEvent,
    Retune,
    RoomMade,
    Trim,
    Trimmed,
)
from mlxd.engines.step_result import StepResult
from mlxd.engines.tokenizer import Tokenizer
from mlxd.engines.types import (
    EngineConfig,
    EngineLimits,
    EngineStats,
    LoadProgress,
    ModelInfo,
    PrefillEvictionRequest,
    Request,
    RequestState,
    RequestStatus,
)

log = structlog.stdlib.get_logger(__name__)

# Seconds within which the system ends a process that was given up.
GONE = 4.0

PrefillEvictionCallback = Callable[[PrefillEvictionRequest], Awaitable[None]]


async def _no_eviction(_: PrefillEvictionRequest) -> None:
    """Nothing to evict: the engine looks at the memory again and decides."""


class EngineState(enum.StrEnum):
    """The life of an engine, in order; DEAD is a READY engine that gave up."""

    NEW = "new"
    LOADING = "loading"
    READY = "ready"
    DEAD = "dead"
    CLOSING = "closing"
    CLOSED = "closed"


class Reader(Protocol):
    """Whoever waits for what an engine makes of one request: a Generation or an Embedding."""

    @property
    def request(self) -> Request | EmbeddingRequest: ...

    @property
    def finished(self) -> bool: ...

    def put(self, item: Any) -> None: ...


class EngineBase(ABC):
    """One model, on a lane of `host` or in a process of its own. Every method is called on the event loop.

    `prefill_eviction_callback` is awaited when a prompt needs more memory than there is; the memory is looked
    at again afterwards. `on_dead` is called once if the engine gives up by itself, `on_freed` with the seconds from
    each cancel, or departure of a reader, until slot and KV were free, `on_refused` with what memory refuses.
    `step_lock` is held during each step; engines that share one take turns, for a backend that cannot run them side
    by side.
    """

    def __init__(
        self,
        config: EngineConfig,
        host: EngineHost,
        *,
        memory: MemoryStake | None = None,
        prefill_eviction_callback: PrefillEvictionCallback = _no_eviction,
        on_dead: Callable[[EngineDead], None] = lambda _: None,
        on_freed: Callable[[float], None] = lambda _: None,
        on_refused: Callable[[MemoryRefusal], None] = lambda _: None,
        step_lock: AbstractContextManager[object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self.state = EngineState.NEW
        self._clock = clock
        self._memory = memory = MemoryShare().stake(config.name) if memory is None else memory
        self._make_room = prefill_eviction_callback
        self._on_dead = on_dead
        self._on_freed = on_freed
        self._on_refused = on_refused
        self._on_progress: Callable[[LoadProgress], None] = lambda _: None
        plan = RunPlan(self._loop_type(), config, self._receive, memory, step_lock or nullcontext(), clock)
        self._run = host.engine_run(plan)
        self._loaded: asyncio.Future[Loaded] = asyncio.get_running_loop().create_future()
        self._closed = asyncio.Event()
        self._live: dict[str, Reader] = {}
        self._evictions: set[asyncio.Task[None]] = set()
        self._trims: deque[asyncio.Future[None]] = deque()
        # once what it ran on was given up: whether that gives back what it held
        self._given_up: bool | None = None

    @classmethod
    @abstractmethod
    def _loop_type(cls) -> type[EngineLoop[Any, Any]]:
        """The loop for this kind of model."""

    @property
    def config(self) -> EngineConfig:
        """What this engine was made with, and the limits that it was last given."""
        return self._config

    @property
    def pid(self) -> int | None:
        """The process that the model has for itself, None while it has none."""
        return self._run.pid

    @property
    def info(self) -> ModelInfo:
        """What is known of the loaded model. Raises EngineClosed before it is loaded."""
        return self._ready().info

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer, for any thread. Raises EngineClosed before the model is loaded."""
        return self._ready().tokenizer

    async def load(self, on_progress: Callable[[LoadProgress], None] = lambda _: None) -> ModelInfo:
        """Load the model. Raises LoadError, and ModelOwnershipError on a second call."""
        if self.state is not EngineState.NEW:
            raise ModelOwnershipError(f"engine of {self._config.name} was asked to load twice")
        self.state = EngineState.LOADING
        self._on_progress = on_progress
        self._run.start()
        loaded = await asyncio.shield(self._loaded)
        if self._run.load_cancelled:  # behind the last piece, where the lane does not look any more
            self.state = EngineState.CLOSING
            self._run.put(Close(EngineClosed("the load was cancelled")))
            await self._closed.wait()
            raise LoadError(LoadFailure.CANCELLED, "the load was cancelled")
        return loaded.info

    def cancel_load(self) -> None:
        """Ask a load in progress to stop at the next piece; `load` then raises LoadError."""
        self._run.cancel_load()

    def generate(self, request: Request) -> Generation:  # noqa: ARG002 - an engine of another kind
        """Make text. Raises WrongModelKind here."""
        raise WrongModelKind(f"model {self._config.name} makes embeddings and generates no text")

    def embed(self, request: EmbeddingRequest) -> Embedding:  # noqa: ARG002 - an engine of another kind
        """Make vectors or scores. Raises WrongModelKind here."""
        raise WrongModelKind(f"model {self._config.name} generates text and makes no embeddings")

    def cancel(self, request_id: str) -> bool:
        """End a request on purpose; its reader gets what was generated. False when it is not here."""
        if request_id not in self._live:
            return False
        self._run.put(Cancel(request_id, self._clock()))
        return True

    def abort_all(self, error: Exception) -> int:
        """End every request with `error`; how many there were."""
        count = len(self._live)
        if count:
            self._run.put(AbortAll(error))
        return count

    def retune(self, limits: EngineLimits) -> None:
        """Other limits, in any state: `config` has them at once, and the lane before its next step.

        What runs and waits stays: with a lower `max_running` nothing starts until fewer run.
        """
        self._config = self._config.with_limits(limits)
        self._run.put(Retune(limits))

    async def trim_prefix_cache(self, max_bytes: int) -> None:
        """Keep at most so many bytes of processed prompts; returns when the rest is free."""
        if self.state is not EngineState.READY:
            return
        done = asyncio.get_running_loop().create_future()
        self._trims.append(done)
        self._run.put(Trim(max_bytes))
        await done

    def stats(self) -> EngineStats:
        """A snapshot that never waits for the lane."""
        return replace(self._run.stats, heartbeat_age_s=self._run.heartbeat_age())

    def requests(self) -> tuple[RequestStatus, ...]:
        """The live requests, as of at most a moment ago."""
        return self._run.statuses

    async def close(self, error: Exception, timeout: float) -> bool:
        """End what runs with `error`, drop the model and give back what it ran on, within `timeout` seconds.

        False when it did not answer in time and what it holds is lost; a process of its own is killed, and is gone a
        few seconds later at most. Idempotent.
        """
        if self._given_up is None and self.state not in (EngineState.NEW, EngineState.CLOSED):
            self.state = EngineState.CLOSING
            self.cancel_load()
            self._run.put(Close(error))
            if not await self._closes_within(timeout):
                log.error("engine.close_timeout", model=self._config.name, timeout_s=timeout)
                self._abandon(error)
        if self._given_up:
            self._given_up = await self._closes_within(GONE)
        self.state = EngineState.CLOSED
        return self._given_up is not False

    async def _closes_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._closed.wait()
        except TimeoutError:
            return False
        return True

    def lose(self, dead: EngineDead) -> None:
        """Give a loaded engine up from outside: its requests end with `dead`, `on_dead` is told, and what it runs on is
        abandoned. Nothing happens to an engine that is not ready.
        """
        if self.state is not EngineState.READY:
            return
        self._suspect(dead)
        self._abandon(dead)
        self.state = EngineState.DEAD
        self._on_dead(dead)

    def _check_place(self, request_id: str) -> None:
        """Raises EngineClosed, EngineDead, ModelOwnershipError or EngineQueueFull."""
        self._ready()
        if request_id in self._live:
            raise ModelOwnershipError(f"request id {request_id} is in use")
        waiting, most = len(self._live) - self._most_running(), self._config.max_waiting
        if waiting >= most:
            raise EngineQueueFull(waiting, most)

    def _most_running(self) -> int:
        """Live requests that do not count as waiting."""
        return self._config.max_running

    def _admit(self, reader: Reader) -> None:
        """The reader's request is on its way to the lane; `_leave` is the twin."""
        self._run.put(Add(reader.request, self._clock()))
        self._live[reader.request.id] = reader

    def _refuse(self, error: MemoryRefusal) -> NoReturn:
        """Tell of it, and raise it."""
        self._on_refused(error)
        raise error

    def _ready(self) -> Loaded:
        if self.state is EngineState.DEAD:
            raise EngineDead(f"the engine of {self._config.name} failed; the model must be loaded again")
        if self.state is not EngineState.READY:
            raise EngineClosed(f"model {self._config.name} is {self.state}")
        return self._loaded.result()

    def _leave(self, reader: Reader) -> None:
        del self._live[reader.request.id]
        if not reader.finished:
            self._run.put(Abort(reader.request.id, self._clock()))

    def _receive(self, event: LoopEvent) -> None:
        match event:
            case StepResult():
                self._deliver(event)
            case LoadProgress():
                if self.state is EngineState.LOADING:  # else nobody waits for it any more
                    self._on_progress(event)
            case Trimmed():
                self._trimmed()
            case Loaded():
                if self.state is EngineState.LOADING:
                    self.state = EngineState.READY
                self._loaded.set_result(event)
            case LoadError():
                self._loaded.set_exception(event)
                self._loaded.exception()  # whoever waited for it may have given up
                self._end()
            case Closed():
                self._end()

    def _deliver(self, result: StepResult) -> None:
        for seconds in result.freed:
            self._on_freed(seconds)
        for request, item in result.deliveries:
            if isinstance(item, MemoryRefusal):
                self._on_refused(item)
            reader = self._live.get(request.id)
            # the id may be another request's by now, whose reader must not get what is left of this one
            if reader is not None and reader.request is request:
                reader.put(item)
        if result.eviction is not None and self.state is EngineState.READY:
            task = asyncio.create_task(self._evict(result.eviction))
            self._evictions.add(task)
            task.add_done_callback(self._evictions.discard)
        if result.dead is not None and self.state is EngineState.READY:
            self.state = EngineState.DEAD
            self._suspect(result.dead)
            self._fail_live(result.dead)
            self._on_dead(result.dead)

    def _trimmed(self) -> None:
        # an abandoned engine may answer after all, and a reader may have been cancelled
        if self._trims and not (done := self._trims.popleft()).done():
            done.set_result(None)

    async def _evict(self, request: PrefillEvictionRequest) -> None:
        try:
            await self._make_room(request)
        finally:
            self._run.put(RoomMade(request.request_id))

    def _end(self) -> None:
        self._run.release()
        if self.state is not EngineState.DEAD:
            self.state = EngineState.CLOSED
        self._fail_live(EngineClosed(f"model {self._config.name} was unloaded"))
        self._closed.set()

    def _abandon(self, error: Exception) -> None:
        """Give up what it runs on."""
        self._given_up = self._run.abandon()
        self.state = EngineState.CLOSED
        self._fail_live(error)

    def _suspect(self, dead: EngineDead) -> None:
        """Note the requests that were at work when it died, or may have been."""
        known = {status.id for status in self.requests() if status.state is RequestState.WAITING}
        running = [reader.request for name, reader in self._live.items() if name not in known]
        waiting = [reader.request for name, reader in self._live.items() if name in known]
        # what is known of them is from before the step: the next ones may have begun with it
        begun = waiting[: max(0, self._most_running() - len(running))]
        dead.suspects = dead.suspects or tuple(fingerprint(request) for request in (*running, *begun))

    def _fail_live(self, error: Exception) -> None:
        while self._trims:
            self._trimmed()
        for reader in self._live.values():
            reader.put(error)
