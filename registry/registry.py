"""The registry: the only writer of model entries. It feeds the planner events and does what it decides."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

import structlog

from mlxd.engines.engine import Engine
from mlxd.engines.errors import MemoryRefusal
from mlxd.engines.types import PrefillEvictionRequest
from mlxd.registry import events as ev
from mlxd.registry.driver import Driver, MemorySource
from mlxd.registry.entry import Entry
from mlxd.registry.errors import LoadNotRunning, ModelLoadFailed, ModelUnloaded, RegistryError, ShuttingDown
from mlxd.registry.lease import Lease
from mlxd.registry.loads import EngineFactory, Loads
from mlxd.registry.prefixes import Prefixes
from mlxd.registry.reader import RegistryReader
from mlxd.registry.residency import MemoryReading, Policy, Purpose, Residency
from mlxd.registry.residents import as_set, resident_of
from mlxd.registry.rooms import Rooms
from mlxd.registry.snapshot import ModelSnapshot, UnloadResult
from mlxd.registry.spec import ModelSpec
from mlxd.registry.states import State
from mlxd.registry.waits import Waits

log = structlog.stdlib.get_logger(__name__)


# Seconds beyond the unload timeout in which a closed engine reports back.
JOIN_SLACK = 1.0


async def _nothing_first(_: str) -> None:
    """Nobody has to know of a load before it begins."""


class Unset:
    """Marks an argument that was not given, where None has a meaning of its own."""


UNSET = Unset()


class ModelRegistry(RegistryReader):
    """Models by canonical name: leases, loads, unloads, policy and snapshots. Used on the event loop only.

    Every method that takes a name raises ModelRemoved for one that is not known; names come from a NameTable.
    `load_need` gives the bytes that a load must find free.
    """

    def __init__(
        self,
        specs: Iterable[ModelSpec],
        policy: Policy,
        engine_factory: EngineFactory,
        memory: MemorySource,
        *,
        load_need: Callable[[ModelSpec], int],
        stall_timeout: float | None = 120.0,
        queue_timeout: float | None = 120.0,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(clock, wall_clock)
        self._queue_timeout = queue_timeout
        self._load_need = load_need
        self._memory = memory
        self._entries = {spec.name: Entry(spec) for spec in specs}
        residents = {name: resident_of(entry.spec, load_need) for name, entry in self._entries.items()}
        self.on_models: Callable[[Collection[str]], None] = lambda _: None
        self.before_load: Callable[[str], Awaitable[None]] = _nothing_first
        self._driver = Driver(
            Residency(policy, memory(fresh=True), residents), self._read_memory, self._act, clock, self._models_changed
        )
        self._waits = Waits(self._driver.post, clock)
        self._rooms = Rooms(self._driver.post)
        self._prefixes = Prefixes(self._by_last_use)
        self._loads = Loads(
            engine_factory,
            self._driver.post,
            clock,
            stall_timeout=stall_timeout,
            unload_timeout=policy.unload_timeout,
            before_load=self._prepare_load,
            on_progress=lambda name: self._models_changed((name,)),
        )

    @property
    def _state(self) -> Residency:
        return self._driver.state

    @property
    def overdue(self) -> float:
        """Seconds since which the planner should have planned again; more than a moment says that it is stuck."""
        return self._driver.overdue

    # -- requests ------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def lease(
        self, name: str, *, request_id: str | None = None, max_wait: float | None = None, key: str | None = None
    ) -> AsyncIterator[Lease]:
        """Hold the right to use a model, loading it if need be, waiting at most `max_wait` seconds. Those who wait with
        different keys take turns.

        Raises ModelNotLoaded, ModelTooLarge, ModelLoadFailed, ModelWaitTimeout, ResidencyQueueFull, ModelUnloaded,
        ModelRemoved or ShuttingDown.
        """
        started = self._clock()
        bound = self._queue_timeout if max_wait is None else max_wait
        grant = await self._waits.for_model(name, Purpose.LEASE, bound, request_id, key)
        granted = self._clock()
        try:
            yield self._lease(name, grant, started)
        finally:
            self._driver.post(ev.Released(name, grant.generation, self._clock() - granted))

    async def make_room(self, model: str, request: PrefillEvictionRequest) -> None:
        """The prefill-eviction callback, for a prompt of `model`: kept prefixes go first, then the cheapest set of idle
        models.

        Returns when they are gone; no model is evicted when all of them would not be enough.
        """
        short = request.needed_bytes - request.headroom_bytes
        short -= await self.trim_prefixes(short, request.reason, for_model=model, for_request=request.request_id)
        if short > 0:
            await self._rooms.want(short, request.reason, model=model, request_id=request.request_id)

    async def trim_prefixes(
        self, short: int, reason: str, *, for_model: str | None = None, for_request: str | None = None
    ) -> int:
        """Give up kept prompt prefixes until about `short` bytes are free; the bytes that were freed."""
        freed = await self._prefixes.free(short)
        if freed:
            inputs = {"short_bytes": short, "freed_bytes": freed}
            self.decisions.add("trim", reason, for_model=for_model, for_request=for_request, inputs=inputs)
        return freed

    async def shed(self, short: int, reason: str) -> None:
        """Evict idle models until about `short` bytes are free, or none is left; returns when they are gone."""
        await self._rooms.want(short, reason, partial=True)

    def abort_all(self, error: Exception, reason: str, inputs: Mapping[str, object]) -> int:
        """End every request of every engine with `error`; how many there were. Models stay loaded."""
        counts = [entry.engine.abort_all(error) for entry in self._entries.values() if entry.engine is not None]
        self.decisions.add("abort", reason, inputs={**inputs, "requests": sum(counts)})
        return sum(counts)

    def refused(self, name: str, error: MemoryRefusal) -> None:
        """An engine has sent a request away for want of memory."""
        inputs = {"needed_bytes": error.estimated_bytes, "free_bytes": error.available_bytes}
        self.decisions.add("refuse", error.why, model=name, for_request=error.request_id, inputs=inputs)

    # -- operators -----------------------------------------------------------------------------------------

    async def load(
        self, name: str, *, pinned: bool | None = None, ttl: float | Unset | None = UNSET, wait: bool = True
    ) -> ModelSnapshot:
        """Load a model, ending the back-off of an earlier failure; at once when it is ready. Raises as `lease` does.

        Pin and ttl count from the beginning, and not at all when the load is refused.
        """
        before = self.model(name)
        undo = ev.PolicyChanged(
            name,
            None if pinned is None else before.pinned,
            self._state.models[name].ttl,
            change_ttl=not isinstance(ttl, Unset),
        )
        self.set_policy(name, pinned=pinned, ttl=ttl)
        if wait:
            await self._load(undo)
        else:
            self._loads.own(self._load_unattended(undo))
            await asyncio.sleep(0)  # let the wait reach the planner, so that the answer shows it
        return self.model(name)

    def cancel_load(self, name: str) -> None:
        """Stop a load in progress. Raises LoadNotRunning."""
        state = self.model(name).state
        if state != State.LOADING:
            raise LoadNotRunning(name, state)
        self._driver.post(ev.CancelLoadWanted(name))

    async def unload(self, name: str, *, force: bool = False, timeout: float | None = None) -> UnloadResult:
        """Unload a model: drain it for at most `timeout` seconds, or cut its requests off with `force`."""
        entry = self._entry(name)
        bound = self._state.policy.unload_timeout if timeout is None else timeout
        self._driver.post(ev.UnloadWanted(name, force, self._clock() + bound))
        if entry.engine is None:
            return UnloadResult(0)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry.gone.append(future)
        await future
        return UnloadResult(entry.last_freed)

    def set_policy(self, name: str, *, pinned: bool | None = None, ttl: float | Unset | None = UNSET) -> ModelSnapshot:
        """Change pin and time to live; both apply at once."""
        change_ttl = not isinstance(ttl, Unset)
        new_ttl = None if isinstance(ttl, Unset) else ttl
        self._driver.post(ev.PolicyChanged(name, pinned, new_ttl, change_ttl=change_ttl))
        return self.model(name)

    def keep_alive(self, name: str, seconds: float | None) -> None:
        """Let a loaded model be idle for so long, None for ever, until it leaves memory or its ttl is changed.

        Nothing happens to a model that is not loaded: what is configured holds for its next load.
        """
        self._driver.post(ev.KeptAlive(name, seconds))

    def reconfigure(
        self,
        specs: Iterable[ModelSpec],
        policy: Policy,
        *,
        stall_timeout: float | None,
        queue_timeout: float | None,
    ) -> None:
        """Take over a new policy and the full list of models; see `mlxd.registry.reconfigure` for what is touched.

        Pin and ttl of a model are taken over where its spec changed them: what an operator set stays otherwise.
        """
        self._queue_timeout = queue_timeout
        self._loads.stall_timeout = stall_timeout
        self._loads.unload_timeout = policy.unload_timeout
        models = []
        for spec in specs:
            entry = self._entries.setdefault(spec.name, Entry(spec))
            configured = resident_of(spec, self._load_need)
            models.append(as_set(configured, entry.spec, self._state.models.get(spec.name)))
            entry.spec = spec
        self._driver.post(ev.Reconfigured(policy, tuple(models)))

    # -- the end -------------------------------------------------------------------------------------------

    async def close(self, drain_timeout: float) -> bool:
        """Refuse waiters, drain leases up to `drain_timeout` seconds, cut the rest off and free every engine, for which
        there is the unload timeout.

        False when an engine did not close in time.
        """
        self._driver.post(ev.Closing())
        try:
            async with asyncio.timeout(drain_timeout):
                await self._driver.unleased.wait()
        except TimeoutError:
            leases = sum(model.leases for model in self._state.models.values())
            log.warning("registry.drain_timeout", leases=leases, timeout_s=drain_timeout)
        # closing an engine and stopping a load are both bounded by it
        until = self._clock() + self._state.policy.unload_timeout + JOIN_SLACK
        # twice: a load that was too far along to cancel is ready only after the first round
        joined = await self._cut_off(until) and await self._cut_off(until)
        self._driver.stop()
        return joined and self._loads.abandoned == 0

    def _models_changed(self, names: Collection[str]) -> None:
        """Tell the one observer which models readers see differently now; it may be set at any time."""
        self.on_models(names)

    def _read_memory(self, *, fresh: bool) -> MemoryReading:
        held = {name: entry.held() for name, entry in self._entries.items()}
        known = {name: holding for name, holding in held.items() if holding is not None}
        return replace(self._memory(fresh=fresh), held=known)

    async def _prepare_load(self, name: str) -> None:
        """A model is about to load. Whoever else has to know may be set at any time, and must not raise; then kept
        prompt prefixes go, on which the planner counted.
        """
        await self.before_load(name)
        model = self._state.models[name]
        short = model.need - model.into - self._memory(fresh=True).unused
        if short > 0:
            await self.trim_prefixes(short, "load", for_model=name)

    def _by_last_use(self) -> list[tuple[str, Engine]]:
        models = self._state.models
        return sorted(self.engines().items(), key=lambda item: models[item[0]].last_used)

    async def _cut_off(self, until: float) -> bool:
        for name in self._entries:
            self._driver.post(ev.UnloadWanted(name, force=True))
        return await self._loads.join(until - self._clock())

    async def _load(self, undo: ev.PolicyChanged) -> None:
        try:
            await self._waits.for_model(undo.model, Purpose.LOAD)
        except RegistryError:
            self._driver.post(undo)
            raise

    async def _load_unattended(self, undo: ev.PolicyChanged) -> None:
        try:
            await self._load(undo)
        except RegistryError as error:
            # the model's state keeps the reason
            log.warning("model.load_refused", model=undo.model, message=str(error))

    def _lease(self, name: str, grant: ev.Grant, started: float) -> Lease:
        entry = self._entries[name]
        assert entry.engine is not None, "a granted model has an engine"
        now = self._clock()
        loaded_meanwhile = entry.loaded_at is not None and entry.loaded_at >= started
        load_s = (entry.load_seconds or 0.0) if loaded_meanwhile else 0.0
        return Lease(entry.engine, entry.spec, grant.generation, queue_s=now - started, load_s=load_s)

    def _public(self, error: Exception) -> Exception:
        """Back-off times leave the registry on the wall clock."""
        if not isinstance(error, ModelLoadFailed):
            return error
        retry_at = self._wall_clock() + error.retry_after
        return ModelLoadFailed(error.model, replace(error.failure, retry_at=retry_at), error.retry_after)

    # -- effects -------------------------------------------------------------------------------------------

    def _act(self, effect: ev.Effect) -> None:
        match effect:
            case ev.Grant():
                self._waits.grant(effect)
            case ev.Refuse(waiter_id, error):
                self._waits.refuse(waiter_id, self._public(error))
            case ev.StartLoad(name, generation):
                self._loads.start_load(self._entries[name], generation)
            case ev.CancelLoad(name):
                self._loads.cancel(self._entries[name])
            case ev.StartUnload(name, generation):
                error = ShuttingDown() if self.closing else ModelUnloaded(name)
                self._loads.start_unload(self._entries[name], generation, error)
            case ev.Forget(name):
                del self._entries[name]
            case ev.RoomAnswered(room_id):
                self._rooms.answer(room_id)
            case ev.Decide(kind, model, reason, for_model, for_request, inputs):
                self.decisions.add(
                    kind, reason, model=model, for_model=for_model, for_request=for_request, inputs=inputs
                )
