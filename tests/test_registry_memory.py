"""Memory as the registry measures it: what comes back late, what is stuck, and what other programs need."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fake_engine import FakeEngine, Workshop
from virtual_time import now, passes, settled

from mlxd.engines.types import PrefillEvictionRequest
from mlxd.registry.errors import ModelLoadFailed
from mlxd.registry.planner import REMEASURE
from mlxd.registry.registry import ModelRegistry
from mlxd.registry.remains import SETTLE
from mlxd.registry.residency import MemoryReading, Policy
from mlxd.registry.spec import ModelSpec

pytestmark = pytest.mark.virtual_time


@dataclass
class House:
    """Room for 100 bytes, models of 80 or less. The test says what is measured, as of the next fresh look."""

    workshop: Workshop = field(default_factory=Workshop)
    measured: int = 0
    prefixes: int = 0
    limit_now: int | None = None
    seen: MemoryReading = field(default_factory=lambda: MemoryReading(100, "memory.ceiling", 0, 0))

    def open(self, sizes: dict[str, int], **options) -> ModelRegistry:
        specs = [ModelSpec(name, Path(name), weight_bytes=size) for name, size in sizes.items()]
        return ModelRegistry(
            specs, Policy(), self.workshop, self, load_need=lambda spec: spec.weight_bytes, clock=now, **options
        )

    def __call__(self, *, fresh: bool) -> MemoryReading:
        if fresh:
            self.seen = MemoryReading(100, "memory.ceiling", self.measured, 0, self.prefixes, limit_now=self.limit_now)
        return self.seen


@pytest.fixture
def house() -> House:
    return House()


async def wait_for_b(house: House, registry: ModelRegistry) -> asyncio.Task:
    """The first model leaves for b, and its 80 bytes are measured still."""
    await registry.load("a")
    house.measured = 80
    loading = asyncio.create_task(registry.load("b"))
    await settled()
    assert registry.model("a").state == "unloaded"
    assert registry.model("b").state == "queued"
    return loading


async def test_memory_that_comes_back_late_is_looked_for_while_somebody_waits(house):
    registry = house.open({"a": 80, "b": 80})
    loading = await wait_for_b(house, registry)
    house.measured = 0
    began = now()
    await loading
    assert now() - began <= REMEASURE


async def test_memory_that_never_comes_back_is_waited_for_no_longer_than_it_may_take(house):
    registry = house.open({"a": 80, "b": 80})
    loading = await wait_for_b(house, registry)
    began = now()
    await loading
    assert now() - began == SETTLE


async def test_a_load_waits_until_other_programs_have_enough(house):
    registry = house.open({"a": 80})
    house.limit_now = 40
    loading = asyncio.create_task(registry.load("a"))
    await passes(1000.0)
    assert registry.model("a").state == "queued"
    house.limit_now = None
    began = now()
    await loading
    assert now() - began <= REMEASURE


async def test_a_prompt_gets_its_room_when_it_is_seen_and_nobody_else_has_to_look(house):
    registry = house.open({"a": 40, "b": 40})
    await registry.load("a")
    await registry.load("b")
    house.measured = 80
    prompt = asyncio.create_task(registry.make_room("b", PrefillEvictionRequest("r", 40, 0, "prefill")))
    await settled()
    assert registry.model("a").state == "unloaded"
    assert not prompt.done()
    house.measured = 40
    began = now()
    await prompt
    assert now() - began <= REMEASURE


@pytest.mark.parametrize(("closes", "waits"), [(True, SETTLE), (False, 1000.0)])
async def test_a_load_that_stalls_gives_back_what_it_had_only_if_its_engine_closes(house, closes, waits):
    house.workshop.hold_loads = True
    registry = house.open({"a": 80, "b": 80}, stall_timeout=10.0)
    first = asyncio.create_task(registry.load("a"))
    await settled()
    house.workshop.last("a").closes_in_time = closes
    house.measured = 50
    with pytest.raises(ModelLoadFailed):
        await first
    house.workshop.hold_loads = False
    second = asyncio.create_task(registry.load("b"))
    await passes(waits - 1.0)
    assert registry.model("b").state == "queued"
    if not closes:
        house.measured = 0
    await passes(1.0)
    assert second.done()


async def test_a_load_that_breaks_in_an_unforeseen_way_gives_back_nothing(house):
    house.workshop.hold_loads = True
    house.workshop.failures["a"] = RuntimeError("a bug")
    registry = house.open({"a": 80, "b": 80})
    first = asyncio.create_task(registry.load("a"))
    await settled()
    house.measured = 50
    house.workshop.last("a").loading.set()
    with pytest.raises(ModelLoadFailed):
        await first
    house.workshop.hold_loads = False
    second = asyncio.create_task(registry.load("b"))
    await passes(1000.0)
    assert registry.model("b").state == "queued"
    house.measured = 0
    await second


async def test_kept_prefixes_stay_when_a_load_takes_what_others_left(house):
    registry = house.open({"a": 80, "b": 10, "c": 80})
    await registry.load("b")
    await registry.load("a")
    house.measured, house.prefixes = 90, 10
    keeper: FakeEngine = house.workshop.last("b")
    keeper.prefix_cache_bytes = 10
    await registry.unload("a")
    await passes(SETTLE)
    await registry.load("c")
    assert keeper.prefix_cache_bytes == 10


async def test_what_an_engine_kept_of_prompts_settles_with_the_rest(house):
    house.workshop.hold_closes = True
    registry = house.open({"a": 40, "b": 95})
    await registry.load("a")
    house.workshop.last("a").prefix_cache_bytes = 30
    house.measured, house.prefixes = 40, 30
    loading = asyncio.create_task(registry.load("b"))
    await settled()
    house.measured, house.prefixes = 70, 0
    house.workshop.last("a").closing.set()
    began = now()
    await loading
    assert now() - began == SETTLE
