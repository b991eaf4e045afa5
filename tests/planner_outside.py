"""The world outside the planner: it does what effects say, as engines and readers would, and is their referee.

Every `send` raises AssertionError when an effect cannot be done or breaks what the planner promises.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from planner_deaths import Mortality
from planner_memory import Memory
from planner_promises import check_effects, check_now, check_state, check_time

from mlxd.registry import events as ev
from mlxd.registry.planner import plan
from mlxd.registry.remains import SETTLE
from mlxd.registry.residency import Held, MemoryReading, Policy, Purpose, Residency, Resident, Waiter


@dataclass
class Running:
    """A load that is under way; `stop` once it was asked to stop, which it may heed or not."""

    generation: int
    stop: bool = False


@dataclass
class Outside:
    """Engines, readers, and leases by who was granted them.

    `held` is what engines hold where that is not what was foreseen. `rooms` has those who wait for room, with the
    unloads that they wait for; those in `shed` do not let them settle. `unwanted` are the engines that an operator
    wants gone, `heeds` says whether a load that is asked to stop does so in the end, `broken` that a promise was.
    """

    state: Residency
    memory: Memory
    now: float = 1000.0
    loads: dict[str, Running] = field(default_factory=dict)
    engines: dict[str, int] = field(default_factory=dict)
    unloads: dict[str, int] = field(default_factory=dict)
    leases: dict[int, tuple[str, int]] = field(default_factory=dict)
    waiting: dict[int, Waiter] = field(default_factory=dict)
    rooms: dict[int, set[tuple[str, int]]] = field(default_factory=dict)
    shed: set[int] = field(default_factory=set)
    held: dict[str, Held] = field(default_factory=dict)
    unwanted: dict[str, int] = field(default_factory=dict)
    generations: dict[str, int] = field(default_factory=dict)
    granted: set[int] = field(default_factory=set)
    refused: dict[int, Exception] = field(default_factory=dict)
    mortality: Mortality = field(default_factory=Mortality)
    heeds: bool = True
    broken: bool = False
    ids: int = 0

    @classmethod
    def of(cls, models: Iterable[Resident], policy: Policy, *, heeds: bool = True, reuses: bool = True) -> Outside:
        memory = Memory(reuses=reuses)
        return cls(Residency(policy, memory.reading({}), {model.name: model for model in models}), memory, heeds=heeds)

    def copy(self) -> Outside:
        """The same world, to be driven elsewhere."""
        loads = {name: replace(load) for name, load in self.loads.items()}
        return replace(
            self,
            memory=self.memory.copy(),
            loads=loads,
            engines=dict(self.engines),
            unloads=dict(self.unloads),
            leases=dict(self.leases),
            waiting=dict(self.waiting),
            rooms=dict(self.rooms),
            shed=set(self.shed),
            held=dict(self.held),
            unwanted=dict(self.unwanted),
            generations=dict(self.generations),
            granted=set(self.granted),
            refused=dict(self.refused),
            mortality=self.mortality.copy(),
        )

    def reading(self) -> MemoryReading:
        """What is measured now."""
        return self.memory.reading(dict(self.held))

    def send(self, event: ev.Event) -> list[ev.Effect]:
        """Plan for an event now, do what follows, and check all of it."""
        self.broken = True  # until all is checked
        before = replace(self.state, memory=self.reading())
        kept = dict(before.models)
        after, effects = plan(before, event, self.now)
        assert before.models == kept, "a plan does not change what it was given"
        self.state = after
        check_effects(self, before, event, effects)
        self.mortality.judge(self, before, event, effects)
        for effect in effects:
            self._do(effect)
        check_state(self)
        check_now(self)
        check_time(after, self.now)
        self.memory.seen(after)
        self.broken = False
        return effects

    def coming_back(self) -> list[str]:
        """Models that will be loaded, or are, and nobody asked for them."""
        own = {waiter.model for waiter in self.state.waiters if waiter.purpose is Purpose.PINNED}
        return sorted(own | self.mortality.back)

    # -- what may happen -----------------------------------------------------------------------------------

    def want(
        self, model: str, purpose: Purpose = Purpose.LEASE, bound: float | None = None, key: str | None = None
    ) -> int:
        """Somebody waits for a model, at most `bound` seconds."""
        self.ids += 1
        deadline = None if bound is None else self.now + bound
        waiter = Waiter(self.ids, model, self.now, purpose, deadline, f"r{self.ids}", key)
        self.waiting[waiter.id] = waiter
        if model in self.loads:
            self.unwanted.pop(model, None)  # a load that could not be stopped may serve who came after
        self.send(ev.Wanted(waiter))
        return waiter.id

    def leave(self, waiter_id: int) -> None:
        del self.waiting[waiter_id]
        self.send(ev.Left(waiter_id))

    def release(self, waiter_id: int, seconds: float | None = None) -> None:
        """Who was granted a lease gives it back, perhaps after its engine went."""
        self.send(ev.Released(*self.leases.pop(waiter_id), seconds))

    def finish_load(self, name: str, weights: int | None = None) -> None:
        """The load is ready, also one that was asked to stop and was too far along."""
        self.engines[name] = generation = self.loads.pop(name).generation
        if weights is not None:
            self.held[name] = Held(weights)
            self.memory.loaded(name, weights, self.now)
        self.send(ev.LoadDone(name, generation, weights))

    def end_load(self, name: str) -> None:
        """The load ends well, or as it was asked to."""
        if self.loads[name].stop and self.heeds:
            self.break_load(name, "cancelled", cancelled=True)
        else:
            self.finish_load(name)

    def break_load(self, name: str, reason: str, stays: float = 0.0, *, cancelled: bool = False) -> None:
        """A load ends early; one that has stalled is abandoned. So much of what it had stays in use."""
        clean = reason != "stalled"
        self.memory.gone(name, self.state.models[name].admitted, stays, self.now, clean=clean)
        generation = self.loads.pop(name).generation
        self.send(ev.LoadBroke(name, generation, reason, "x", cancelled=cancelled, clean=clean))

    def finish_unload(self, name: str, stays: float = 0.0, *, clean: bool = True) -> None:
        """An engine is closed, or abandoned. So much of what it had stays in use."""
        self.held.pop(name, None)
        held = self.memory.gone(name, self.state.models[name].admitted, stays, self.now, clean=clean)
        if clean and stays == 1.0:
            self.memory.whole[name, self.unloads[name]] = (self.now + SETTLE, held)
        self.send(ev.UnloadDone(name, self.unloads.pop(name), clean=clean, held=held))

    def kill(self, name: str, *suspects: str) -> None:
        """An engine dies at work on these requests, perhaps while it is closed."""
        facts = {"signal": "SIGKILL"}
        self.send(ev.EngineDied(name, self.state.models[name].generation, "it is gone", facts, suspects))

    def unload(self, name: str, *, force: bool, until: float | None) -> None:
        if name in self.loads or name in self.engines:
            self.unwanted[name] = self.state.models[name].generation
        self.send(ev.UnloadWanted(name, force, until))

    def hold(self, name: str, kv: int, promised: int) -> None:
        """Answers of a loaded model fill memory, or leave it, and may take more."""
        weights = self.held[name].weights if name in self.held else self.state.models[name].weights
        self.held[name] = Held(weights, kv, promised)
        self.memory.grown(name, weights + kv)

    def reconfigure(self, policy: Policy, models: Sequence[Resident]) -> None:
        self.send(ev.Reconfigured(policy, tuple(models)))

    def want_room(self, size: int, *, partial: bool) -> None:
        self.ids += 1
        self.rooms[self.ids] = set(self.unloads.items())
        if partial:
            self.shed.add(self.ids)
        reason = "memory_soft" if partial else "prefill"
        effects = self.send(ev.RoomNeeded(self.ids, size, reason, partial=partial))
        evicted = {e.model for e in effects if isinstance(e, ev.Decide) and e.kind == "evict" and e.reason == reason}
        if self.ids in self.rooms:
            self.rooms[self.ids] |= {(name, generation) for name, generation in self.unloads.items() if name in evicted}

    def tick(self, moment: float) -> None:
        """Time passes and the planner is told."""
        self.now = moment
        self.send(ev.Tick())

    # -- what effects do -----------------------------------------------------------------------------------

    def _do(self, effect: ev.Effect) -> None:
        match effect:
            case ev.StartLoad(name, generation):
                assert name not in self.loads, f"two loads of {name} at once"
                assert name not in self.engines, f"{name} is loaded beside itself"
                assert name not in self.unloads, f"{name} is loaded before its last engine is gone"
                assert generation > self.generations.get(name, 0), "each load has a number of its own"
                self.loads[name] = Running(generation)
                self.generations[name] = generation
                self.memory.starts(name, self.state.models[name].admitted)
            case ev.CancelLoad(name):
                self.loads[name].stop = True
            case ev.StartUnload(name, generation):
                assert self.engines.pop(name, None) == generation, f"{name} has no engine {generation} to unload"
                self.unloads[name] = generation
            case ev.Grant():
                self._grant(effect)
            case ev.Refuse(waiter_id, error):
                assert self.waiting.pop(waiter_id, None), f"{waiter_id} is refused, and does not wait"
                self.refused[waiter_id] = error
            case ev.Forget(name):
                real = {*self.loads, *self.engines, *self.unloads}
                assert name not in real, f"{name} is forgotten and in memory"
                assert name not in self.state.models
            case ev.RoomAnswered(room_id):
                victims = self.rooms.pop(room_id)
                assert not victims & set(self.unloads.items()), "there is no room yet"
                prompts = room_id not in self.shed
                assert not (prompts and self.memory.all_there(victims, self.now)), "nothing of the room is free yet"

    def _grant(self, grant: ev.Grant) -> None:
        waiter = self.waiting.pop(grant.waiter_id, None)
        assert waiter is not None, f"{grant.waiter_id} is granted, and does not wait"
        assert grant.model == waiter.model
        assert grant.leased == (waiter.purpose is Purpose.LEASE)
        assert self.engines.get(grant.model) == grant.generation, f"{grant.model} is granted and not loaded"
        self.granted.add(waiter.id)
        if grant.leased:
            self.leases[waiter.id] = (grant.model, grant.generation)
