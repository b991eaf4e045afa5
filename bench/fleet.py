#!/usr/bin/env python3
"""Many daemons behind one that passes requests on: the planner of each, really run, on a virtual clock.

usage: fleet.py [--nodes 1 10 100 1000] [--requests 20000] [--models 40] [--plot docs/fleet.png]

Each node has 48 GiB for models of 4 to 16 GiB, loads one at a time at 2 GiB/s, and answers 8 requests of a model at a
time, 3 s each on average. Requests come at random, half of one a second for each node, for models whose popularity
falls as 1/rank. Each way of choosing a node sees the same requests. The first third only warms up.

swaps      loads for each request
hits       share of requests that found their model ready where they were sent
queue      seconds from a request's arrival until its answer is made: median and 95th percentile
refused    share that waited 120 s in vain, or found a full queue

mlxd             `preference` over what peers told last, every 5 s, and what was sent since
fewest waiting   the node with the fewest requests, whatever it has in memory
by name          a hash of the model's name (rendezvous)
round robin, random
"""

from __future__ import annotations

import argparse
import heapq
import random
import statistics
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot

from mlxd.registry import events as ev
from mlxd.registry.peer_choice import Option, Standing, preference, spread_of
from mlxd.registry.planner import next_deadline, plan
from mlxd.registry.residency import Held, MemoryReading, Policy, Residency, Resident, Waiter
from mlxd.registry.states import State

mpl.use("Agg")

GIB = 1024**3
LIMIT, BASE = 49 * GIB, GIB
BYTES_A_SECOND = 2 * GIB
UNLOAD_SECONDS = 0.3
SLOTS = 8
ANSWER_SECONDS = 3.0
RATE = 0.5
TIMEOUT = 120.0
POLL = 5.0
IN_MEMORY = (State.READY, State.DRAINING, State.UNLOADING)
RESULT = tuple[float, float, float, float, float]


@dataclass(slots=True)
class Asked:
    """A request: when it came, whether its model was ready where it went, and when its answer began; None if never."""

    model: str
    came: float
    hit: bool = False
    began: float | None = None


class Clock:
    """What is to happen, in order."""

    def __init__(self) -> None:
        self.now = 0.0
        self._order = count()
        self._due: list[tuple[float, int, Callable[[], None]]] = []

    def at(self, moment: float, act: Callable[[], None]) -> None:
        """Do this then."""
        heapq.heappush(self._due, (moment, next(self._order), act))

    def run(self) -> None:
        """Until nothing is left."""
        while self._due:
            self.now, _, act = heapq.heappop(self._due)
            act()


@dataclass(slots=True)
class Engine:
    """What a loaded model works at, and who waits for a slot."""

    running: int = 0
    queue: deque[Asked] = field(default_factory=deque)


class Node:
    """One daemon without engines."""

    def __init__(self, name: str, models: Sequence[Resident], clock: Clock, draw: random.Random) -> None:
        self.name = name
        self.state = Residency(Policy(), self._memory({}), {model.name: model for model in models})
        self.loads = 0
        self.present = 0
        self._clock = clock
        self._draw = draw
        self._engines: dict[str, Engine] = {}
        self._waiting: dict[int, Asked] = {}
        self._ids = count(1)
        self._tick = float("inf")

    def is_ready(self, model: str) -> bool:
        """Whether it answers at once."""
        return self.state.models[model].state is State.READY

    def waiting_for(self, model: str) -> int:
        """Requests that wait for a model, or for a slot in its engine."""
        queued = sum(waiter.model == model for waiter in self.state.waiters)
        return queued + (len(self._engines[model].queue) if model in self._engines else 0)

    def waiting(self) -> int:
        """The same of all models."""
        return len(self.state.waiters) + sum(len(engine.queue) for engine in self._engines.values())

    def ask(self, asked: Asked) -> None:
        """Take a request."""
        number, now = next(self._ids), self._clock.now
        asked.hit = self.is_ready(asked.model)
        self.present += 1
        self._waiting[number] = asked
        self._post(ev.Wanted(Waiter(number, asked.model, now, deadline=now + TIMEOUT)))

    def _post(self, event: ev.Event) -> None:
        inside = {model.name: Held(model.weights) for model in self.state.models.values() if model.state in IN_MEMORY}
        state = replace(self.state, memory=self._memory(inside))
        self.state, effects = plan(state, event, self._clock.now)
        for effect in effects:
            self._act(effect)
        due = next_deadline(self.state, self._clock.now)
        if due is not None and not self._clock.now < self._tick <= due:
            self._tick = due
            self._clock.at(due, lambda: self._post(ev.Tick()))

    def _memory(self, held: dict[str, Held]) -> MemoryReading:
        measured = BASE + sum(one.weights for one in held.values())
        return MemoryReading(LIMIT, "memory.ceiling", measured, BASE, held=held)

    def _act(self, effect: ev.Effect) -> None:
        now = self._clock.now
        match effect:
            case ev.StartLoad(model, generation):
                self.loads += 1
                weights = self.state.models[model].weights
                done = ev.LoadDone(model, generation, weights)
                self._clock.at(now + weights / BYTES_A_SECOND, lambda: self._post(done))
            case ev.StartUnload(model, generation):
                gone = ev.UnloadDone(model, generation, held=self.state.models[model].weights)
                self._clock.at(now + UNLOAD_SECONDS, lambda: self._post(gone))
            case ev.Grant(waiter_id, model, generation, True):
                self._admit(self._waiting.pop(waiter_id), model, generation)
            case ev.Refuse(waiter_id, _):
                self._waiting.pop(waiter_id)
                self.present -= 1

    def _admit(self, asked: Asked, model: str, generation: int) -> None:
        engine = self._engines.setdefault(model, Engine())
        if engine.running < SLOTS:
            self._begin(engine, asked, generation)
        else:
            engine.queue.append(asked)

    def _begin(self, engine: Engine, asked: Asked, generation: int) -> None:
        engine.running += 1
        asked.began = now = self._clock.now
        took = self._draw.expovariate(1 / ANSWER_SECONDS)
        self._clock.at(now + took, lambda: self._end(engine, asked.model, generation, took))

    def _end(self, engine: Engine, model: str, generation: int, took: float) -> None:
        engine.running -= 1
        self.present -= 1
        if engine.queue:
            self._begin(engine, engine.queue.popleft(), generation)
        self._post(ev.Released(model, generation, took))


Choice = Callable[[str], Node]


class Preference:
    """What a daemon does with peers: it knows what they told it last, and what it has sent since."""

    def __init__(self, nodes: Sequence[Node], clock: Clock) -> None:
        self._nodes = nodes
        self._clock = clock
        self._looked = -POLL
        self._ready: dict[str, list[Node]] = {}
        self._all: Counter[str] = Counter()
        self._of_model: Counter[tuple[str, str]] = Counter()

    def __call__(self, model: str) -> Node:
        if self._clock.now - self._looked >= POLL:
            self._look()
        ready = self._ready.get(model, [])
        options = {node.name: self._option(node, model, ready=bool(ready)) for node in ready or self._nodes}
        first = min(options, key=lambda name: preference(options[name]))
        self._all[first] += 1
        self._of_model[first, model] += 1
        return next(node for node in ready or self._nodes if node.name == first)

    def _look(self) -> None:
        self._looked = self._clock.now
        names = list(self._nodes[0].state.models)
        self._ready = {name: [node for node in self._nodes if node.is_ready(name)] for name in names}
        self._all = Counter({node.name: node.waiting() for node in self._nodes})
        self._of_model.clear()
        for name, nodes in self._ready.items():
            self._of_model.update({(node.name, name): node.waiting_for(name) for node in nodes})

    def _option(self, node: Node, model: str, *, ready: bool) -> Option:
        spread = spread_of(node.name, model)
        if ready:
            return Option(node.name, Standing.READY, waiting=self._of_model[node.name, model], spread=spread)
        return Option(node.name, Standing.LOADS_THERE, waiting=self._all[node.name], spread=spread)


def choices(nodes: Sequence[Node], clock: Clock, draw: random.Random) -> dict[str, Choice]:
    """Every way of choosing, by name."""
    turn = count()
    return {
        "mlxd": Preference(nodes, clock),
        "fewest waiting": lambda _: min(nodes, key=lambda node: (node.present, draw.random())),
        "by name": lambda model: min(nodes, key=lambda node: spread_of(node.name, model)),
        "round robin": lambda _: nodes[next(turn) % len(nodes)],
        "random": lambda _: draw.choice(nodes),
    }


def simulate(way: str, size: int, requests: int, models: int, seed: int) -> RESULT:
    """Swaps and hits for each request, median and 95th percentile of the queue in seconds, and the share refused."""
    draw, clock = random.Random(seed), Clock()
    known = [Resident(f"model-{rank}", draw.randint(4, 16) * GIB) for rank in range(models)]
    nodes = [Node(f"node-{number}", known, clock, draw) for number in range(size)]
    choose = choices(nodes, clock, draw)[way]
    popular = [1 / (rank + 1) for rank in range(models)]
    traffic, moment = random.Random(seed + 1), 0.0
    asked: list[Asked] = []
    loads_before = 0

    def come(one: Asked) -> None:
        nonlocal loads_before
        if one is asked[requests // 3]:
            loads_before = sum(node.loads for node in nodes)
        choose(one.model).ask(one)

    for model in traffic.choices(known, popular, k=requests):
        moment += traffic.expovariate(RATE * size)
        one = Asked(model.name, moment)
        asked.append(one)
        clock.at(moment, lambda one=one: come(one))
    clock.run()
    counted = asked[requests // 3 :]
    queue = sorted(one.began - one.came for one in counted if one.began is not None)
    loads = sum(node.loads for node in nodes) - loads_before
    return (
        loads / len(counted),
        sum(one.hit for one in counted) / len(counted),
        statistics.median(queue),
        queue[int(0.95 * (len(queue) - 1))],
        1 - len(queue) / len(counted),
    )


def plot(results: dict[str, list[RESULT]], sizes: Sequence[int], file: Path) -> None:
    """Swaps, hits and the queue against the number of nodes, a line for each way."""
    figure, axes = pyplot.subplots(1, 3, figsize=(12, 3.6))
    for place, title in enumerate(("loads per request", "model ready on arrival", "queue, 95th percentile, s")):
        for way, rows in results.items():
            axes[place].plot(sizes, [row[place if place < 2 else 3] for row in rows], marker="o", label=way)
        axes[place].set(title=title, xlabel="nodes", xscale="log", ylim=(0, None))
    axes[2].set_yscale("symlog")
    axes[0].legend()
    figure.tight_layout()
    figure.savefig(file, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 10, 100, 1000])
    parser.add_argument("--requests", type=int, default=20_000, help="at 1,000 nodes; a fifth of it at 1")
    parser.add_argument("--models", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    results: dict[str, list[RESULT]] = {}
    started = time.monotonic()
    print("| nodes | | loads per request | ready on arrival | queue: median, s | 95th percentile, s | refused |")
    print("|---|---|---|---|---|---|---|")
    for size in arguments.nodes:
        requests = max(arguments.requests // 5, min(arguments.requests, 20 * size))
        for way in choices([], Clock(), random.Random()):
            row = simulate(way, size, requests, arguments.models, arguments.seed)
            results.setdefault(way, []).append(row)
            swaps, hits, median, late, refused = row
            cells = f"{swaps:.2f} | {hits:.0%} | {median:.2f} | {late:.1f} | {refused:.1%}"
            print(f"| {size:,} | {way} | {cells} |", flush=True)
    print(f"\n{time.monotonic() - started:.0f} s")
    if arguments.plot:
        plot(results, arguments.nodes, arguments.plot)


if __name__ == "__main__":
    main()
