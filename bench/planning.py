#!/usr/bin/env python3
"""What one event costs the event loop, with 1,000 known models and 500 who wait: the planner alone, and the whole
`Driver.post`. CPU milliseconds of the thread, so that a busy machine does not count.

usage: planning.py [--models 1000] [--waiters 500] [--resident 40] [--events 3000] [--keys 20] [--profile] [--json]

A simulated daemon of random traffic: about `--resident` models are in memory, most of them in use, some pinned, others
idle, on their way in or out; everybody else waits, each for another model. The aim is 5 ms an event.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import pstats
import random
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from types import MappingProxyType

from mlxd.registry import events as ev
from mlxd.registry.driver import Driver
from mlxd.registry.planner import plan
from mlxd.registry.residency import Held, MemoryReading, Policy, Residency, Resident, Waiter
from mlxd.registry.states import State

GIB = 1024**3
# Of a model, on average; the largest is twice as large.
SIZE = 4 * GIB
PINNED = 3
IN_MEMORY = (State.READY, State.DRAINING, State.UNLOADING)


@dataclass
class Costs:
    """Seconds of each event by kind."""

    plan: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    post: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))


class Traffic:
    """A daemon without engines: events are drawn by what its state allows, on a clock of its own."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._draw = random.Random(arguments.seed)
        self._ids = count(1)
        self._waiters = waiters = arguments.waiters
        self._resident = arguments.resident
        self._keys = [f"key-{number}" for number in range(arguments.keys)] or [None]
        self.now = 1000.0
        policy = Policy(max_wait=20.0, queue_size=2 * waiters, min_residency=2.0, max_loading=2)
        residents = {model.name: model for model in map(self._model, range(arguments.models))}
        empty = Residency(policy, self._reading(GIB), residents)
        self.driver = Driver(empty, self.memory, lambda _: None, lambda: self.now)

    def _model(self, number: int) -> Resident:
        weights, ttl = self._draw.randint(GIB // 2, 2 * SIZE - GIB // 2), self._draw.choice([None, 60.0, 600.0])
        return Resident(f"model-{number:04}", weights, GIB // 8, pinned=number < PINNED, ttl=ttl)

    def memory(self, *, fresh: bool) -> MemoryReading:
        del fresh
        inside = [model for model in self.driver.state.models.values() if model.state in IN_MEMORY]
        held = {model.name: Held(model.weights, kv=GIB // 16) for model in inside}
        measured = GIB + sum(one.weights + one.kv for one in held.values())
        return self._reading(measured, held)

    def _reading(self, measured: int, held: Mapping[str, Held] = MappingProxyType({})) -> MemoryReading:
        return MemoryReading(self._resident * SIZE, "memory.ceiling", measured, GIB, held=held)

    def fill(self) -> None:
        """Bring everybody in: models into memory, the rest into the queue."""
        names = sorted(self.driver.state.models)
        self._draw.shuffle(names)
        for name in names[: self._waiters + self._resident]:
            self.driver.post(ev.Wanted(self._waiter(name)))
            for model in self._in(State.LOADING):
                self.driver.post(ev.LoadDone(model.name, model.generation, model.weights))

    def events(self) -> Iterator[tuple[str, ev.Event]]:
        """Endless events, each with its kind; the queue keeps its length."""
        kinds: dict[str, tuple[int, Callable[[], ev.Event | None]]] = {
            "Wanted, ready": (6, self._wanted_ready),
            "Wanted, cold": (4, self._wanted_cold),
            "Left": (3, self._left),
            "Released": (7, self._released),
            "LoadDone": (4, self._load_done),
            "LoadBroke": (1, self._load_broke),
            "UnloadDone": (4, self._unload_done),
            "UnloadWanted": (1, self._unload_wanted),
            "EngineDied": (1, self._engine_died),
            "PolicyChanged": (1, self._policy_changed),
            "RoomNeeded": (1, self._room_needed),
            "Tick": (4, ev.Tick),
            "Tick, 20 overdue": (1, self._many_overdue),
            "Reconfigured": (1, self._reconfigured),
        }
        names, weights = list(kinds), [weight for weight, _ in kinds.values()]
        while True:
            self.now += self._draw.expovariate(10)
            missing = self._waiters - len(self.driver.state.waiters)
            (name,) = self._draw.choices(names, weights) if abs(missing) < 5 else [_balance(missing)]
            event = kinds[name][1]()
            if event is not None:
                yield name, event

    def _in(self, *states: State) -> list[Resident]:
        return [model for model in self.driver.state.models.values() if model.state in states]

    def _one(self, *states: State, leased: bool | None = None) -> Resident | None:
        models = [model for model in self._in(*states) if leased in (None, model.leases > 0)]
        return self._draw.choice(models) if models else None

    def _waiter(self, model: str) -> Waiter:
        number = next(self._ids)
        deadline = self.now + self._draw.uniform(60, 600)
        return Waiter(number, model, self.now, deadline=deadline, request_id=f"r{number}", key=self._key())

    def _key(self) -> str | None:
        return self._draw.choice(self._keys)

    def _wanted_ready(self) -> ev.Event | None:
        model = self._one(State.READY)
        return None if model is None else ev.Wanted(self._waiter(model.name))

    def _wanted_cold(self) -> ev.Event | None:
        model = self._one(State.UNLOADED)
        return None if model is None else ev.Wanted(self._waiter(model.name))

    def _left(self) -> ev.Event | None:
        waiters = self.driver.state.waiters
        return ev.Left(self._draw.choice(waiters).id) if waiters else None

    def _released(self) -> ev.Event | None:
        model = self._one(State.READY, State.DRAINING, leased=True)
        return None if model is None else ev.Released(model.name, model.generation, self._draw.expovariate(0.2))

    def _load_done(self) -> ev.Event | None:
        model = self._one(State.LOADING)
        return None if model is None else ev.LoadDone(model.name, model.generation, model.weights)

    def _load_broke(self) -> ev.Event | None:
        model = self._one(State.LOADING)
        return None if model is None else ev.LoadBroke(model.name, model.generation, "bad_files", "truncated")

    def _unload_done(self) -> ev.Event | None:
        model = self._one(State.UNLOADING)
        return None if model is None else ev.UnloadDone(model.name, model.generation)

    def _unload_wanted(self) -> ev.Event | None:
        model = self._one(State.READY)
        return None if model is None else ev.UnloadWanted(model.name, until=self.now + 30)

    def _engine_died(self) -> ev.Event | None:
        model = self._one(State.READY, leased=True)
        return None if model is None else ev.EngineDied(model.name, model.generation, "three steps failed")

    def _policy_changed(self) -> ev.Event | None:
        model = self._one(State.READY)
        return (
            None
            if model is None
            else ev.PolicyChanged(model.name, ttl=self._draw.choice([None, 60.0]), change_ttl=True)
        )

    def _room_needed(self) -> ev.Event:
        return ev.RoomNeeded(next(self._ids), self._draw.randint(GIB // 4, 4 * GIB), "prefill")

    def _many_overdue(self) -> ev.Event | None:
        """Requests that came together, with one bound, end together."""
        deadlines = sorted(waiter.deadline for waiter in self.driver.state.waiters if waiter.deadline is not None)
        if len(deadlines) < 20:
            return None
        self.now = max(self.now, deadlines[19])
        return ev.Tick()

    def _reconfigured(self) -> ev.Event:
        """The same models, of which every fiftieth was changed and every hundredth got another time to live."""
        models = list(self.driver.state.models.values())
        for index in range(self._draw.randrange(50), len(models), 50):
            models[index] = replace(models[index], load_key=f"{self.now}")
        for index in range(self._draw.randrange(100), len(models), 100):
            models[index] = replace(models[index], ttl=30.0)
        return ev.Reconfigured(self.driver.state.policy, tuple(models))


def _balance(missing: int) -> str:
    return "Wanted, cold" if missing > 0 else "Left"


@dataclass
class Slowest:
    """The events that took the planner longest, each with the state that it came to."""

    most: int = 20
    worst: list[tuple[float, Residency, ev.Event, float]] = field(default_factory=list)

    def look(self, seconds: float, state: Residency, event: ev.Event, now: float) -> None:
        self.worst = sorted([*self.worst, (seconds, state, event, now)], key=lambda one: -one[0])[: self.most]

    def profile(self) -> None:
        """Plan them again under the profiler, and print where the time goes."""
        profiler = cProfile.Profile()
        for _, state, event, now in self.worst:
            profiler.runcall(plan, state, event, now)
        pstats.Stats(profiler).strip_dirs().sort_stats("cumulative").print_stats(20)


async def measure(traffic: Traffic, events: int, slowest: Slowest) -> Costs:
    """The same event planned alone, then posted; the timers that the driver sets never get to run."""
    costs = Costs()
    source = traffic.events()
    for _ in range(events):
        kind, event = next(source)
        state = replace(traffic.driver.state, memory=traffic.memory(fresh=True))
        seconds = _timed(partial(plan, state, event, traffic.now))
        costs.plan[kind].append(seconds)
        slowest.look(seconds, state, event, traffic.now)
        costs.post[kind].append(_timed(partial(traffic.driver.post, event)))
    traffic.driver.stop()
    return costs


def _timed(work: Callable[[], object]) -> float:
    started = time.thread_time()
    work()
    return time.thread_time() - started


def summary(costs: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Milliseconds by kind, and of all."""
    every = [seconds for kind in costs.values() for seconds in kind]
    return {kind: _figures(seconds) for kind, seconds in {"all": every, **dict(sorted(costs.items()))}.items()}


def _figures(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    figures = {"median_ms": statistics.median(ordered), "p99_ms": p99, "max_ms": ordered[-1]}
    return {"events": len(ordered)} | {name: round(1000 * value, 3) for name, value in figures.items()}


def show(results: dict[str, dict[str, dict[str, float]]]) -> None:
    print(f"{'':17} {'':>6} {'plan, ms':^24} {'post, ms':^24}")
    print(f"{'event':17} {'count':>6}" + f" {'median':>8}{'p99':>8}{'max':>8}" * 2)
    for kind, row in results["plan"].items():
        figures = [one[name] for one in (row, results["post"][kind]) for name in ("median_ms", "p99_ms", "max_ms")]
        print(f"{kind:17} {row['events']:6} " + "".join(f"{value:8.2f}" for value in figures[:3]), end=" ")
        print("".join(f"{value:8.2f}" for value in figures[3:]))


async def run(arguments: argparse.Namespace) -> None:
    traffic = Traffic(arguments)
    traffic.fill()
    slowest = Slowest()
    costs = await measure(traffic, arguments.events, slowest)
    state = traffic.driver.state
    results = {"plan": summary(costs.plan), "post": summary(costs.post)}
    world = {"waiters": len(state.waiters), **Counter(str(model.state) for model in state.models.values())}
    if arguments.json:
        print(json.dumps({"state": world, **results}, indent=2))
        return
    print("at the end: " + ", ".join(f"{number} {name}" for name, number in world.items()))
    show(results)
    if arguments.profile:
        slowest.profile()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=1000)
    parser.add_argument("--waiters", type=int, default=500)
    parser.add_argument("--resident", type=int, default=40)
    parser.add_argument("--events", type=int, default=3000)
    parser.add_argument("--keys", type=int, default=20, help="API keys that the waiters have; 0 for none")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--profile", action="store_true", help="profile the slowest events")
    parser.add_argument("--json", action="store_true")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
