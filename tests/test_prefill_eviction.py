"""The prefill-eviction callback, with real engines: a prompt without room beside an idle model is served without it."""

import math
from pathlib import Path

import pytest
from engine_harness import chat, collect, lane_pool

from mlxd.engines import first_look
from mlxd.engines.core import EngineCore
from mlxd.engines.errors import EngineDead, PrefillMemoryExceeded
from mlxd.engines.memory_share import MemoryShare
from mlxd.engines.types import EngineConfig, PrefillEvictionRequest
from mlxd.registry.registry import ModelRegistry
from mlxd.registry.residency import MemoryReading, Policy
from mlxd.registry.spec import ModelSpec

# Bytes: what a model is charged with, a little more than its weights, and all there is.
SIZE = 12 * 2**20
LIMIT = 30 * 2**20
# Words of prompts. Beside one idle model there is room for SHORT; without it for MEDIUM, and for LONG in small chunks.
SHORT, MEDIUM, LONG, LONGEST = 5, 450, 900, 1900


class House:
    """Room for two models and short prompts; every loaded model takes its bytes from the headroom."""

    def __init__(self, lanes, paths: dict[str, Path]) -> None:
        self.lanes = lanes
        self.asked: list[PrefillEvictionRequest] = []
        self.share = MemoryShare(self.headroom, limit=lambda: "memory.ceiling")
        specs = [ModelSpec(name, path, weight_bytes=SIZE) for name, path in paths.items()]
        self.registry = ModelRegistry(
            specs,
            Policy(),
            self.make,
            lambda *, fresh: MemoryReading(LIMIT, "memory.ceiling", 0, 0),
            load_need=lambda spec: spec.weight_bytes,
        )

    def make(self, spec: ModelSpec, on_dead) -> EngineCore:
        async def make_room(request: PrefillEvictionRequest) -> None:
            self.asked.append(request)
            await self.registry.make_room(spec.name, request)

        return EngineCore(
            EngineConfig(spec.name, spec.path, 4096, prefill_chunk=128, attention_heads=4),
            self.lanes,
            memory=self.share.stake(spec.name),
            prefill_eviction_callback=make_room,
            on_dead=fail,
        )

    def headroom(self) -> int:
        return LIMIT - SIZE * len(self.registry.engines())

    def states(self) -> dict[str, str]:
        return {model.spec.name: model.state for model in self.registry.models()}

    async def ask(self, name: str, words: int) -> str:
        async with self.registry.lease(name) as lease:
            outputs = await collect(lease.engine, chat(lease.engine, "word " * words))
        return "".join(output.text for output in outputs)


def fail(dead: EngineDead) -> None:
    raise AssertionError(dead)


@pytest.fixture
def quick_machine(monkeypatch):
    """A fresh model is measured twice however busy the cores are; the limits here are those of that price."""
    monkeypatch.setattr(first_look, "QUICK", math.inf)


@pytest.fixture
async def house(quick_machine, tiny_model, other_tiny_model):
    async with lane_pool() as lanes:
        house = House(lanes, {"a": tiny_model, "b": other_tiny_model})
        yield house
        assert await house.registry.close(5)
        assert house.share.spare() == LIMIT
        assert not house.share.stake("another").others_run()


async def test_a_long_prompt_is_served_once_the_idle_model_has_left(house):
    await house.ask("a", SHORT)
    alone = await house.ask("b", MEDIUM)
    asked = house.asked[0]
    assert asked.headroom_bytes == LIMIT - 2 * SIZE < asked.needed_bytes <= LIMIT - SIZE
    assert house.states() == {"a": "unloaded", "b": "ready"}
    assert await house.ask("b", MEDIUM) == alone
    assert len(house.asked) == 1
    (evicted,) = [d for d in house.registry.last_decisions(99) if d.kind == "evict"]
    assert (evicted.model, evicted.reason, evicted.for_model) == ("a", "prefill", "b")


async def test_a_prompt_that_fits_in_small_chunks_alone_is_served_once_the_idle_model_has_left(house):
    await house.ask("a", SHORT)
    assert await house.ask("b", LONG)
    needed = [asked.needed_bytes for asked in house.asked]
    assert needed[0] > LIMIT - SIZE >= needed[1]
    assert house.states() == {"a": "unloaded", "b": "ready"}


async def test_a_prompt_that_no_eviction_can_help_is_refused_and_nobody_leaves(house):
    await house.ask("a", SHORT)
    with pytest.raises(PrefillMemoryExceeded) as refused:
        await house.ask("b", LONGEST)
    assert refused.value.estimated_bytes > LIMIT - SIZE
    assert refused.value.limit_bytes == LIMIT - 2 * SIZE
    assert house.states() == {"a": "ready", "b": "ready"}
    assert await house.ask("b", SHORT)


async def test_a_model_in_use_is_not_evicted_for_a_prompt(house):
    async with house.registry.lease("a"):
        with pytest.raises(PrefillMemoryExceeded):
            await house.ask("b", MEDIUM)
        assert house.registry.model("a").state == "ready"
