"""Random readers, operators and faults on a whole registry: with the tasks and cancels that the planner alone lacks.

At the end everything is let go, and nobody waits, nothing is leased, and books and entries agree.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine, Workshop
from virtual_time import now, passes

from mlxd.engines.errors import EngineDead
from mlxd.registry.errors import RegistryError
from mlxd.registry.registry import ModelRegistry
from mlxd.registry.residency import MemoryReading, Policy
from mlxd.registry.spec import ModelSpec

pytestmark = pytest.mark.virtual_time

NAMES = "abcd"
STEPS = 60
ACTS = ("read",) * 6 + ("leave",) * 2 + ("unload", "load", "cancel_load", "reload", "shed")
ACTS += ("loads_end",) * 3 + ("closes_end",) * 2 + ("die",)


class House:
    """Four models of which two or three fit. What happens is drawn; `faults` is what the event loop complains of."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.workshop = Workshop(hold_loads=True, hold_closes=True)
        self.versions = dict.fromkeys(NAMES, 0)
        self.registry = ModelRegistry(
            [self.spec(name) for name in NAMES],
            self.policy(),
            self.workshop,
            lambda *, fresh: MemoryReading(100, "memory.ceiling", 0, 0),
            load_need=lambda spec: spec.weight_bytes,
            clock=now,
            stall_timeout=20.0,
            queue_timeout=15.0,
        )
        self.tasks: list[asyncio.Task[None]] = []
        self.faults: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self.faults.append(context))

    def spec(self, name: str) -> ModelSpec:
        size = self.dice.choice([20, 40, 60]) if self.versions[name] else 40
        key = str(self.versions[name])
        return ModelSpec(name, Path(name), weight_bytes=size, load_key=key, ttl=self.dice.choice([None, None, 5.0]))

    def policy(self) -> Policy:
        draw = self.dice.choice
        return Policy(
            max_loading=draw([1, 2]),
            max_loaded=draw([0, 0, 1, 2]),
            max_wait=draw([2.0, 5.0]),
            queue_size=draw([2, 6]),
            min_residency=draw([0.0, 3.0]),
            unload_timeout=4.0,
        )

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        async def run() -> None:
            with suppress(RegistryError):
                await coroutine

        self.tasks.append(asyncio.create_task(run()))

    async def use(self, name: str) -> None:
        key, wait = self.dice.choice([None, "k", "j"]), self.dice.choice([None, 0.0, 3.0])
        seconds = self.dice.choice([0, 0, 1, 6])
        async with self.registry.lease(name, max_wait=wait, key=key) as lease:
            assert lease.engine.loaded
            await passes(seconds)

    def engines(self) -> list[FakeEngine]:
        return [engine for made in self.workshop.engines.values() for engine in made]

    def reload(self, names: list[str], policy: Policy) -> None:
        specs = [self.spec(name) for name in names]
        self.registry.reconfigure(specs, policy, stall_timeout=20.0, queue_timeout=15.0)

    async def act(self) -> None:
        name, dice = self.dice.choice(NAMES), self.dice
        match dice.choice(ACTS):
            case "read":
                self.start(self.use(name))
            case "leave" if self.tasks:
                dice.choice(self.tasks).cancel()
            case "loads_end":
                self.some(lambda engine: engine.loading.set())
            case "closes_end":
                self.some(lambda engine: engine.closing.set())
            case "die":
                self.some(lambda engine: engine.on_dead(EngineDead("three steps failed")) if engine.loaded else None)
            case operation:
                self.operate(operation, name)

    def operate(self, operation: str, name: str) -> None:
        dice = self.dice
        match operation:
            case "unload":
                self.start(self.registry.unload(name, force=dice.random() < 0.5, timeout=3.0))
            case "load":
                pinned, wait = dice.choice([None, False, True]), dice.random() < 0.5
                self.start(self.registry.load(name, pinned=pinned, wait=wait))
            case "cancel_load":
                with suppress(RegistryError):
                    self.registry.cancel_load(name)
            case "reload":
                for changed in NAMES:
                    self.versions[changed] += dice.random() < 0.3
                self.reload([kept for kept in NAMES if dice.random() < 0.8], self.policy())
            case "shed":
                self.start(self.registry.shed(30, "memory_soft"))

    def some(self, what: Callable[[FakeEngine], Any]) -> None:
        for engine in self.engines():
            if self.dice.random() < 0.5:
                what(engine)

    def look(self) -> None:
        """What readers ask never fails and changes nothing."""
        for name in NAMES:
            with suppress(RegistryError):
                self.registry.explain(name, operator=self.dice.random() < 0.5)
        self.registry.models(), self.registry.waiting(), self.registry.engines()

    async def let_go(self) -> None:
        self.workshop.hold_loads = self.workshop.hold_closes = False
        self.reload(list(NAMES), Policy(max_wait=2.0, unload_timeout=4.0))
        for name in NAMES:
            self.registry.set_policy(name, pinned=False)
        for _ in range(60):
            for engine in self.engines():
                engine.loading.set()
                engine.closing.set()
            await passes(2.0)


@pytest.mark.parametrize("seeds", [range(first, first + 25) for first in range(0, 150, 25)], ids=str)
async def test_whatever_happens_nobody_waits_for_ever_and_the_books_balance(seeds):
    for seed in seeds:
        house = House(seed)
        for _ in range(STEPS):
            await house.act()
            await passes(house.dice.choice([0.0, 0.0, 0.0, 0.5, 1.0, 2.0]))
            house.look()
        await house.let_go()
        registry, state = house.registry, house.registry._state
        assert all(task.done() for task in house.tasks), (seed, state)
        broken = [task.exception() for task in house.tasks if not task.cancelled() and task.exception()]
        assert (broken, house.faults) == ([], []), seed
        assert [(model.name, model.leases) for model in state.models.values() if model.leases] == [], seed
        assert (state.waiters, state.rooms) == ((), ()), seed
        assert set(registry._entries) == set(state.models) == set(NAMES), seed
        assert await registry.close(5.0), seed
