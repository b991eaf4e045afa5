"""Loads and unloads as owned tasks; each reports back to the planner as one event."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

import structlog

from mlxd.engines.engine import Engine
from mlxd.engines.errors import EngineDead, LoadError, LoadFailure
from mlxd.engines.types import LoadProgress, ModelInfo
from mlxd.registry import events as ev
from mlxd.registry.entry import Entry
from mlxd.registry.patience import Patience
from mlxd.registry.spec import ModelSpec

log = structlog.stdlib.get_logger(__name__)


class EngineFactory(Protocol):
    """Makes an engine that is not loaded yet."""

    def __call__(self, spec: ModelSpec, on_dead: Callable[[EngineDead], None]) -> Engine: ...


class _Stuck(LoadError):
    """A load that did not end by itself; `clean` when its engine gave back what it had all the same."""

    def __init__(self, error: LoadError, *, clean: bool) -> None:
        super().__init__(error.reason, str(error))
        self.clean = clean


class Loads:
    """Runs an entry's engine into and out of memory. Seconds for all times; both timeouts may be changed."""

    def __init__(
        self,
        factory: EngineFactory,
        post: Callable[[ev.Event], None],
        clock: Callable[[], float],
        *,
        stall_timeout: float | None,
        unload_timeout: float,
        before_load: Callable[[str], Awaitable[None]],
        on_progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._factory = factory
        self._post = post
        self._clock = clock
        self.stall_timeout = stall_timeout
        self.unload_timeout = unload_timeout
        self._before_load = before_load
        self._on_progress = on_progress
        self._tasks: set[asyncio.Task[None]] = set()
        self.abandoned = 0

    def start_load(self, entry: Entry, generation: int) -> None:
        """Give the entry an engine at once, so that it can be cancelled from now on, and load it."""
        name = entry.spec.name
        try:
            engine = self._factory(entry.spec, lambda dead: self._died(entry, generation, dead))
        # An engine that cannot be made is one failed load, not the end of the registry.
        except Exception as error:
            log.exception("model.load_broke", model=name)
            self._load_failed(entry, generation, _unforeseen(error), clean=True)
            return
        entry.own(engine, self._clock())
        entry.patience = Patience(self.stall_timeout, self.unload_timeout)
        self.own(self._load(engine, entry, generation))

    def start_unload(self, entry: Entry, generation: int, error: Exception) -> None:
        self.own(self._unload(entry, generation, error))

    def cancel(self, entry: Entry) -> None:
        """Ask a load to stop at its next piece; one that does not in time is left to itself."""
        if entry.engine is not None:
            entry.engine.cancel_load()
        if entry.patience is not None:
            entry.patience.ask()

    def own(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a task that `join` waits for."""
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def join(self, timeout: float) -> bool:
        """Wait until every load and unload has ended; those left after `timeout` are cancelled, and it is False."""
        until = self._clock() + timeout
        while self._tasks and (left := until - self._clock()) > 0:
            await asyncio.wait(self._tasks, timeout=left)
        for task in self._tasks:
            task.cancel()
        return not self._tasks

    async def _load(self, engine: Engine, entry: Entry, generation: int) -> None:
        name = entry.spec.name
        failure: LoadError | None = None
        clean = True
        try:
            await self._before_load(name)
            info = await self._load_or_stall(engine, entry)
        except _Stuck as error:
            failure, clean = error, error.clean
        except LoadError as error:
            failure = error
        # As above: one that breaks in an unforeseen way, and nobody knows what it still has.
        except Exception as error:
            log.exception("model.load_broke", model=name)
            failure, clean = _unforeseen(error), False
        if failure is not None:
            self._load_failed(entry, generation, failure, clean=clean)
            return
        entry.loaded(info, self._clock())
        seconds = round(entry.load_seconds or 0.0, 3)
        log.info("model.loaded", model=name, seconds=seconds, bytes=entry.weight_bytes)
        self._post(ev.LoadDone(name, generation, info.weight_bytes))
        if entry.death is not None:  # before it was known to be loaded, and so it meant nothing
            self._post(entry.death)

    def _died(self, entry: Entry, generation: int, dead: EngineDead) -> None:
        name = entry.spec.name
        log.warning("model.engine_died", model=name, message=str(dead), suspects=dead.suspects)
        entry.death = ev.EngineDied(name, generation, str(dead), dead.facts, dead.suspects)
        self._post(entry.death)

    def _load_failed(self, entry: Entry, generation: int, failure: LoadError, *, clean: bool) -> None:
        name = entry.spec.name
        entry.disown()
        cancelled = failure.reason is LoadFailure.CANCELLED
        log.warning("model.load_failed", model=name, reason=failure.reason, message=str(failure))
        dead = failure.__cause__
        facts = dead.facts if isinstance(dead, EngineDead) else {}
        broke = ev.LoadBroke(
            name, generation, failure.reason, str(failure), cancelled=cancelled, clean=clean, facts=facts
        )
        self._post(broke)

    async def _load_or_stall(self, engine: Engine, entry: Entry) -> ModelInfo:
        patience = entry.patience
        assert patience is not None, "a load has its patience from the beginning"

        def advance(progress: LoadProgress) -> None:
            entry.advance(progress, self._clock())
            self._on_progress(entry.spec.name)
            patience.progress()

        try:
            async with patience:
                return await engine.load(advance)
        except TimeoutError:
            if patience.asked:
                error = LoadError(LoadFailure.CANCELLED, f"the load did not stop within {self.unload_timeout:g} s")
                clean = await self._close(engine, error, 0.0)
            else:
                error = LoadError(LoadFailure.STALLED, f"no bytes were read for {self.stall_timeout:g} s")
                clean = await self._close(engine, error, self.unload_timeout)
            raise _Stuck(error, clean=clean) from None

    async def _unload(self, entry: Entry, generation: int, error: Exception) -> None:
        name = entry.spec.name
        assert entry.engine is not None, "a resident model has an engine"
        held = entry.held_bytes
        clean = await self._close(entry.engine, error, self.unload_timeout)
        entry.disown(held if clean else 0)
        log.info("model.unloaded", model=name, freed_bytes=entry.last_freed, clean=clean)
        self._post(ev.UnloadDone(name, generation, clean=clean, held=held))

    async def _close(self, engine: Engine, error: Exception, timeout: float) -> bool:
        try:
            clean = await engine.close(error, timeout)
        # As with a load: an engine that breaks while it closes is lost, the registry goes on.
        except Exception:
            log.exception("model.close_broke", model=engine.config.name)
            clean = False
        self.abandoned += not clean
        return clean


def _unforeseen(error: Exception) -> LoadError:
    return LoadError(LoadFailure.INTERNAL, f"{type(error).__name__}: {error}")
