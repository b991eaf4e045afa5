"""Kept prompt prefixes count as free: models and prompts get their room before anybody is evicted."""

import asyncio
from pathlib import Path

import pytest
from fake_engine import Workshop
from virtual_time import now, passes

from mlxd.engines.types import PrefillEvictionRequest
from mlxd.registry.prefixes import PATIENCE
from mlxd.registry.registry import ModelRegistry
from mlxd.registry.residency import MemoryReading, Policy
from mlxd.registry.spec import ModelSpec

pytestmark = pytest.mark.virtual_time


class House:
    """Room for 100 bytes; models take 40. What engines keep of prompts is measured apart."""

    def __init__(self) -> None:
        self.workshop = Workshop()
        specs = [ModelSpec(name, Path(name), weight_bytes=40) for name in "abc"]
        self.registry = ModelRegistry(
            specs, Policy(), self.workshop, self.memory, load_need=lambda spec: spec.weight_bytes, clock=now
        )

    def memory(self, *, fresh: bool) -> MemoryReading:
        made = [one for engines in self.workshop.engines.values() for one in engines]
        engines = [one for one in made if one.loaded and not one.closed_with]
        kept = sum(engine.prefix_cache_bytes for engine in engines)
        return MemoryReading(100, "memory.ceiling", 40 * len(engines), 0, prefixes=kept)

    def kept(self) -> dict[str, int]:
        return {name: engine.prefix_cache_bytes for name, engine in self.engines().items()}

    def engines(self):
        return self.registry.engines()

    def kinds(self) -> list[tuple[str, str | None]]:
        return [(d.kind, d.for_model or d.model) for d in self.registry.last_decisions(20)]


@pytest.fixture
async def house():
    house = House()
    for name in "ab":
        await house.registry.load(name)
        await passes(1)
    house.workshop.last("a").prefix_cache_bytes = 12
    house.workshop.last("b").prefix_cache_bytes = 8
    return house


async def test_a_model_that_fits_beside_kept_prefixes_leaves_them_alone(house):
    house.workshop.last("a").prefix_cache_bytes = 0
    await house.registry.unload("b")
    house.workshop.last("a").prefix_cache_bytes = 20
    await house.registry.load("c")
    assert house.kept() == {"a": 20, "c": 0}


async def test_a_load_takes_what_it_lacks_from_kept_prefixes_and_evicts_nobody(house):
    await house.registry.unload("b")
    house.workshop.last("a").prefix_cache_bytes = 30
    await house.registry.load("c")
    assert house.kept() == {"a": 20, "c": 0}
    assert ("trim", "c") in house.kinds()
    assert not any(kind == "evict" for kind, _ in house.kinds())


async def test_a_prompt_takes_kept_prefixes_before_models_least_recently_used_first(house):
    await house.registry.make_room("b", PrefillEvictionRequest("r", 15, 0, "prefill"))
    assert house.kept() == {"a": 0, "b": 5}
    assert not any(kind == "evict" for kind, _ in house.kinds())


async def test_a_prompt_that_needs_more_than_prefixes_evicts_a_model_for_the_rest(house):
    await house.registry.make_room("b", PrefillEvictionRequest("r", 50, 0, "prefill"))
    assert set(house.engines()) == {"b"}
    assert house.kept() == {"b": 0}


async def test_an_engine_that_does_not_answer_does_not_hold_a_load_up_for_long(house):
    await house.registry.unload("b")
    stuck = house.workshop.last("a")
    stuck.prefix_cache_bytes, stuck.trims_held = 30, asyncio.Event()
    began = now()
    await house.registry.load("c")
    assert now() - began == PATIENCE
    assert house.kept() == {"a": 30, "c": 0}
