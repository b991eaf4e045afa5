"""A Hypothesis machine that drives the planner through a world outside it; every step is checked there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from planner_endings import check_ending, check_fairness
from planner_outside import Outside
from planner_promises import check_stale

from mlxd.registry import events as ev
from mlxd.registry.planner import next_deadline
from mlxd.registry.residency import Policy, Purpose, Resident
from mlxd.registry.states import State

T = TypeVar("T")

NAMES = "abcdef"
picks = st.integers(0, 5)
bounds = st.sampled_from([None, None, None, 30.0, 1.0, 0.0])
keys = st.sampled_from([None, None, "alice", "bob"])
ttls = st.sampled_from([None, None, None, 0.0, 2.3, 60.0])
# Not whole on purpose: sums of such numbers are rounded.
steps = st.sampled_from([0.7, 0.1, 5.3, 20.0, 300.0])
traits = st.fixed_dictionaries(
    {
        "weights": st.sampled_from([40, 40, 40, 25, 10, 60, 60, 95, 101]),
        "kv_floor": st.sampled_from([0, 5]),
        "load_key": st.sampled_from(["one", "other"]),
        "pinned": st.sampled_from([False, False, False, False, False, True]),
        "ttl": ttls,
    }
)
# How much of what an engine had stays in use after it.
shares = st.sampled_from([0.0, 0.0, 0.5, 1.0])
policies = st.builds(
    Policy,
    max_loaded=st.sampled_from([0, 0, 0, 1, 2, 3]),
    max_loading=st.sampled_from([1, 2]),
    queue_size=st.sampled_from([256, 256, 1, 3]),
    max_wait=st.sampled_from([20.0, 0.0, 2.3]),
    min_residency=st.sampled_from([0.0, 0.0, 5.7, 30.0]),
    autoload=st.sampled_from([True, True, True, True, True, False]),
)


def pick(options: Sequence[T], number: int) -> T:
    return options[number % len(options)]


@dataclass(frozen=True)
class Nature:
    """Whether loads heed a cancel, whether what engines left behind is used again, and whether nobody else takes or
    gives back memory.
    """

    heeds: bool
    reuses: bool
    quiet: bool


natures = st.builds(Nature, st.booleans(), st.booleans(), st.booleans())


class Traffic(RuleBasedStateMachine):
    """What readers, engines, memory and time may do to a registry. `picks` choose among what there is."""

    def __init__(self) -> None:
        super().__init__()
        self.world = Outside.of((), Policy())
        self.names = NAMES
        self.quiet = True

    @initialize(
        drawn=st.lists(traits, min_size=1, max_size=6),
        warm=st.lists(st.sampled_from([Purpose.LEASE, Purpose.LOAD]), max_size=6),
        policy=policies,
        nature=natures,
    )
    def begin(self, drawn: list[dict], warm: list[Purpose], policy: Policy, nature: Nature) -> None:
        """Some models are in memory from the start, in use or not."""
        self.quiet = nature.quiet
        self.names = NAMES[: len(drawn)]
        residents = [Resident(name, **given) for name, given in zip(self.names, drawn, strict=True)]
        self.world = Outside.of(residents, policy, heeds=nature.heeds, reuses=nature.reuses)
        for name, purpose in zip(self.names, warm, strict=False):
            self.world.want(name, purpose, bound=30.0)
            for loading in list(self.world.loads):
                self.world.finish_load(loading)

    def name(self, number: int) -> str:
        return pick(self.names, number)

    # -- readers -------------------------------------------------------------------------------------------

    @rule(number=picks, bound=bounds, key=keys)
    def request(self, number: int, bound: float | None, key: str | None) -> None:
        self.world.want(self.name(number), bound=bound, key=key)

    @rule(number=picks, key=keys)
    def patient_request(self, number: int, key: str | None) -> None:
        self.world.want(self.name(number), key=key)

    @rule(number=picks, bound=st.sampled_from([None, 1.0]))
    def operator_load(self, number: int, bound: float | None) -> None:
        self.world.want(self.name(number), Purpose.LOAD, bound)

    @precondition(lambda self: self.world.waiting)
    @rule(number=picks)
    def reader_leaves(self, number: int) -> None:
        self.world.leave(pick(list(self.world.waiting), number))

    @precondition(lambda self: self.world.leases)
    @rule(number=picks, seconds=st.sampled_from([None, 2.0]))
    def lease_ends(self, number: int, seconds: float | None) -> None:
        self.world.release(pick(list(self.world.leases), number), seconds)

    # -- engines -------------------------------------------------------------------------------------------

    @precondition(lambda self: self.world.loads)
    @rule(number=picks, weights=st.sampled_from([None, None, 30, 70]))
    def load_ends(self, number: int, weights: int | None) -> None:
        self.world.finish_load(pick(list(self.world.loads), number), weights)

    @precondition(lambda self: any(load.stop for load in self.world.loads.values()))
    @rule(number=picks, stays=shares)
    def load_stops(self, number: int, stays: float) -> None:
        stopping = [name for name, load in self.world.loads.items() if load.stop]
        self.world.break_load(pick(stopping, number), "cancelled", stays, cancelled=True)

    @precondition(lambda self: self.world.loads or self.world.engines or self.world.unloads)
    @rule(number=picks, reason=st.sampled_from(["bad_files", "crashed", "out_of_memory", "stalled"]), stays=shares)
    def engine_breaks(self, number: int, reason: str, stays: float) -> None:
        """While it loads, at work, or while it closes."""
        world = self.world
        name = pick([*world.engines, *world.loads, *world.unloads], number)
        if name in world.loads:
            world.break_load(name, reason, stays)
        else:
            world.kill(name, f"r{number}", "poison")

    @precondition(lambda self: self.world.engines)
    @rule(number=picks, times=st.integers(2, 6), drains=st.booleans())
    def engine_dies_again_and_again(self, number: int, times: int, drains: bool) -> None:
        """A request that kills its engine is sent once more whenever it may be, perhaps while others wait for the next
        load.
        """
        world, name = self.world, pick(list(self.world.engines), number)
        for _ in range(times):
            if name in world.engines and drains:
                world.unload(name, force=False, until=None)
                world.want(name)
            if name in world.engines:
                world.kill(name, "poison")
                world.finish_unload(name, world.memory.stays)
            trouble = world.state.models[name].trouble if name in world.state.models else None
            if trouble is not None and trouble.retry_at > world.now:
                world.tick(trouble.retry_at)
            world.want(name, bound=30.0)
            if name in world.loads:
                world.end_load(name)

    @precondition(lambda self: self.world.unloads)
    @rule(number=picks, clean=st.sampled_from([True, True, False]), stays=shares)
    def unload_ends(self, number: int, clean: bool, stays: float) -> None:
        self.world.finish_unload(pick(list(self.world.unloads), number), stays, clean=clean)

    # -- memory --------------------------------------------------------------------------------------------

    @rule(size=st.sampled_from([0, 10, 40, 90, 1000]), partial=st.booleans())
    def room_is_needed(self, size: int, partial: bool) -> None:
        self.world.want_room(size, partial=partial)

    @rule(limit=st.sampled_from([100, 100, 80, 200, 50]), extra=st.sampled_from([0, 0, 20, -30]))
    def memory_changes(self, limit: int, extra: int) -> None:
        self.world.memory.limit = limit
        self.world.memory.take(0 if self.quiet else extra)

    @rule(limit_now=st.sampled_from([None, None, 60, 40, 90, 0, 150]))
    def others_need_memory(self, limit_now: int | None) -> None:
        """Other programs press, or do not any more."""
        self.world.memory.limit_now = limit_now

    @rule(share=st.sampled_from([0.5, 1.0]))
    def memory_comes_back(self, share: float) -> None:
        self.world.memory.comes_back(share)

    @precondition(lambda self: self.world.engines)
    @rule(number=picks, kv=st.sampled_from([0, 5, 30]), promised=st.sampled_from([0, 0, 10]))
    def engine_fills(self, number: int, kv: int, promised: int) -> None:
        self.world.hold(pick(list(self.world.engines), number), kv, promised)

    @precondition(lambda self: self.world.loads or self.world.unloads)
    @rule(number=picks, stays=shares)
    def all_goes_well(self, number: int, stays: float) -> None:
        """Whatever is under way ends as it should."""
        name = pick([*self.world.unloads, *self.world.loads], number)
        if name in self.world.loads:
            self.world.end_load(name)
        else:
            self.world.finish_unload(name, stays)

    # -- time ----------------------------------------------------------------------------------------------

    @rule(seconds=steps)
    def time_passes(self, seconds: float) -> None:
        """The planner is told at each moment that it named, and at the end."""
        until = self.world.now + seconds
        while (due := next_deadline(self.world.state, self.world.now)) is not None and due < until:
            self.world.tick(due)
        self.world.tick(until)

    @rule()
    def next_moment(self) -> None:
        due = next_deadline(self.world.state, self.world.now)
        if due is not None:
            self.world.tick(due)

    @rule(seconds=steps)
    def loop_stalls(self, seconds: float) -> None:
        """Time passes and the tick is late: whatever is next comes first."""
        self.world.now += seconds

    # -- noise ---------------------------------------------------------------------------------------------

    @rule(kind=st.integers(0, 5), number=picks, age=st.integers(0, 3))
    def stale_event(self, kind: int, number: int, age: int) -> None:
        """Twice or far too late; age 0 is of this generation, where that is stale too."""
        model = self.world.state.models.get(self.name(number), Resident(self.name(number), 1))
        generation = self.world.generations.get(model.name, 0) - age
        alive = model.state in (State.READY, State.DRAINING) and not age
        loading, unloading = model.state is State.LOADING and not age, model.state is State.UNLOADING and not age
        events: list[tuple[bool, ev.Event]] = [
            (bool(model.leases) and not age, ev.Released(model.name, generation)),
            (loading, ev.LoadDone(model.name, generation)),
            (loading, ev.LoadBroke(model.name, generation, "bad_files", "x")),
            (unloading, ev.UnloadDone(model.name, generation, clean=False)),
            (alive, ev.EngineDied(model.name, generation, "x")),
            (False, ev.Left(0)),
        ]
        is_news, event = events[kind]
        if not is_news:
            check_stale(self.world.state, event, self.world.now)

    # -- the end -------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        if self.world.broken:
            return  # what is wrong is known
        check_ending(self.world.copy())
        check_fairness(self.world.copy())


class Operators(Traffic):
    """Beside the traffic, operators intervene and the configuration changes."""

    @rule(number=picks, pinned=st.sampled_from([None, True, False]), change_ttl=st.booleans(), ttl=ttls)
    def policy_changes(self, number: int, pinned: bool | None, change_ttl: bool, ttl: float | None) -> None:
        self.world.send(ev.PolicyChanged(self.name(number), pinned, ttl, change_ttl))

    @rule(number=picks, seconds=ttls)
    def client_keeps_it_alive(self, number: int, seconds: float | None) -> None:
        self.world.send(ev.KeptAlive(self.name(number), seconds))

    @rule(number=picks, force=st.booleans(), until=st.sampled_from([0.0, 2.0, 30.0]))
    def operator_unload(self, number: int, force: bool, until: float) -> None:
        self.world.unload(self.name(number), force=force, until=self.world.now + until)

    @precondition(lambda self: self.world.coming_back())
    @rule(number=picks, unpins=st.booleans())
    def operator_gives_up(self, number: int, unpins: bool) -> None:
        """A model that comes back by itself is not to."""
        name = pick(self.world.coming_back(), number)
        if unpins:
            self.world.send(ev.PolicyChanged(name, pinned=False))
        else:
            self.world.unload(name, force=False, until=None)

    @rule(number=picks)
    def operator_cancels(self, number: int) -> None:
        self.world.send(ev.CancelLoadWanted(self.name(number)))

    @rule(number=picks, change=traits | st.none() | traits, policy=st.none() | policies)
    def reload(self, number: int, change: dict | None, policy: Policy | None) -> None:
        """A new configuration has one model changed, back, new, or not any more, and perhaps another policy."""
        state = self.world.state
        models = [model for name, model in state.models.items() if name != self.name(number) and not model.removed]
        if change is not None:
            models.append(Resident(self.name(number), **change))
        self.world.reconfigure(policy or state.policy, models)


class Ending(Operators):
    """The daemon stops somewhere in the middle."""

    @rule()
    def closing(self) -> None:
        self.world.send(ev.Closing())
