"""The prefill-eviction callback, with real engines: a prompt without room beside an idle model is served without it."""

from pathlib import Path

import pytest
from engine_harness import chat, collect, lane_pool

from mlxd.engines.core import EngineCore
from mlxd.engines.errors import EngineDead, PrefillMemoryExceeded
from mlxd.engines.prefill_room import PrefillMemory
from mlxd.engines.types import EngineConfig, PrefillEvictionRequest
from mlxd.registry.registry import ModelRegistry
from mlxd.registry.residency import MemoryReading, Policy
from mlxd.registry.spec import ModelSpec

# Bytes: of a token of a prompt, of a model, which is a little more than its weights, and of all there is.
TOKEN = 30_000
SIZE = 400 * TOKEN
LIMIT = 1000 * TOKEN


class House:
    """Room for two models and 200 tokens; every loaded model takes its bytes from the headroom."""

    def __init__(self, lanes, paths: dict[str, Path]) -> None:
        self.lanes = lanes
        self.asked: list[PrefillEvictionRequest] = []
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
            EngineConfig(spec.name, spec.path, 4096, prefill_chunk=128),
            self.lanes,
            memory=PrefillMemory(needed=lambda tokens: tokens * TOKEN, headroom=self.headroom),
            prefill_eviction_callback=make_room,
            on_dead=fail,
        )

    def headroom(self) -> int:
        return LIMIT - SIZE * len(self.registry.engines())

    async def ask(self, name: str, words: int) -> str:
        async with self.registry.lease(name) as lease:
            outputs = await collect(lease.engine, chat(lease.engine, "word " * words))
        return "".join(output.text for output in outputs)


def fail(dead: EngineDead) -> None:
    raise AssertionError(dead)


@pytest.fixture
async def house(tiny_model, other_tiny_model):
    async with lane_pool() as lanes:
        house = House(lanes, {"a": tiny_model, "b": other_tiny_model})
        yield house
        assert await house.registry.close(5)


async def test_a_long_prompt_is_served_once_the_idle_model_has_left(house):
    await house.ask("a", 5)
    alone = await house.ask("b", 150)
    assert house.asked[-1].needed_bytes > 200 * TOKEN
    assert {m.spec.name: m.state for m in house.registry.models()} == {"a": "unloaded", "b": "ready"}
    assert await house.ask("b", 150) == alone
    assert len(house.asked) == 1
    (evicted,) = [d for d in house.registry.last_decisions(99) if d.kind == "evict"]
    assert (evicted.model, evicted.reason, evicted.for_model) == ("a", "prefill", "b")


async def test_a_prompt_that_no_eviction_can_help_is_refused_and_nobody_leaves(house):
    await house.ask("a", 5)
    with pytest.raises(PrefillMemoryExceeded) as refused:
        await house.ask("b", 800)
    assert refused.value.estimated_bytes > 800 * TOKEN
    assert {m.spec.name: m.state for m in house.registry.models()} == {"a": "ready", "b": "ready"}
    assert await house.ask("b", 5)


async def test_a_model_in_use_is_not_evicted_for_a_prompt(house):
    async with house.registry.lease("a"):
        with pytest.raises(PrefillMemoryExceeded):
            await house.ask("b", 150)
        assert house.registry.model("a").state == "ready"
