"""Where a world must come to from whatever state: everybody is answered, and nobody starves."""

from __future__ import annotations

from dataclasses import dataclass, field

from planner_outside import Outside

from mlxd.registry import events as ev
from mlxd.registry.errors import ModelTooLarge, ModelWaitTimeout
from mlxd.registry.planner import next_deadline
from mlxd.registry.remains import SETTLE
from mlxd.registry.states import State

AT_REST = frozenset({State.UNLOADED, State.READY, State.FAILED})
# Seconds in the world that has endless traffic.
ANSWER, LOAD, UNLOAD = 4.0, 3.0, 1.0


def check_ending(world: Outside) -> None:
    """Leases are given back, loads succeed and unloads end: then everybody is answered and nothing is under way."""
    world.memory.calm_down()
    world.send(ev.Tick())
    for _ in range(400):
        if not _work(world):
            break
    else:
        raise AssertionError("it goes on for ever")
    states = {name: model.state for name, model in world.state.models.items()}
    assert not world.waiting, f"somebody waits for ever: {states}"
    world.mortality.check_ending(world.state)
    assert not world.rooms, f"somebody waits for room for ever: {states}"
    assert set(states.values()) <= AT_REST, f"it is stuck: {states}"
    for name, generation in world.unwanted.items():
        model = world.state.models.get(name)
        stays = model is not None and model.generation == generation and model.state is State.READY
        assert not stays, f"{name} was to be unloaded and stays"


def _work(world: Outside) -> bool:
    """The next thing that happens when all goes well; False when there is none."""
    refused = set(world.refused)
    world.memory.keep_below_the_limit()
    if world.leases:
        world.release(next(iter(world.leases)))
    elif world.loads:
        world.end_load(next(iter(world.loads)))
    elif world.unloads:
        world.finish_unload(next(iter(world.unloads)), world.memory.stays)
    elif (due := next_deadline(world.state, world.now)) is not None:
        world.tick(due)
    else:
        return False
    for waiter_id in set(world.refused) - refused:
        error = world.refused[waiter_id]
        assert isinstance(error, ModelTooLarge | ModelWaitTimeout), f"all went well and {waiter_id} got {error!r}"
    return True


@dataclass
class TrafficElsewhere:
    """Requests that follow each other without end on every model but one; all takes its time."""

    world: Outside
    quiet: str
    due: dict[tuple[str, str | int], float] = field(default_factory=dict)

    def step(self) -> None:
        """The next thing that takes place."""
        world = self.world
        world.memory.keep_below_the_limit()
        jobs: dict[tuple[str, str | int], float] = {("lease", waiter_id): ANSWER for waiter_id in world.leases}
        jobs |= {("load", name): LOAD for name in world.loads}
        jobs |= {("unload", name): UNLOAD for name in world.unloads}
        self.due = {job: self.due.get(job, world.now + seconds) for job, seconds in jobs.items()}
        job = min(self.due, key=lambda job: self.due[job], default=None)
        tick = next_deadline(world.state, world.now)
        if job is None or (tick is not None and tick < self.due[job]):
            assert tick is not None, "somebody waits and nothing is ever to happen"
            world.tick(tick)
            return
        world.now = self.due.pop(job)
        self._end(job)

    def _end(self, job: tuple[str, str | int]) -> None:
        world = self.world
        match job:
            case "lease", int(waiter_id):
                name, _ = world.leases[waiter_id]
                if name != self.quiet:
                    world.want(name)
                world.release(waiter_id)
            case "unload", str(name):
                world.finish_unload(name, world.memory.stays)
            case _, str(name):
                world.end_load(name)


def check_fairness(world: Outside) -> None:
    """However busy the other models are, the oldest waiter is served or refused within a bound."""
    if not world.state.waiters:
        return
    world.memory.calm_down()
    world.send(ev.Tick())
    if not world.state.waiters:
        return
    oldest = world.state.waiters[0]
    policy = world.state.policy
    keys = {waiter.key for waiter in world.state.waiters} | {None}
    swap = ANSWER + UNLOAD + SETTLE + LOAD
    bound = swap + len(keys) * (policy.max_wait + policy.min_residency + swap)
    until = world.now + bound
    traffic = TrafficElsewhere(world, oldest.model)
    while any(waiter.id == oldest.id for waiter in world.state.waiters):
        traffic.step()
        assert world.now <= until, f"{oldest.model} starves: {bound} s and more"
