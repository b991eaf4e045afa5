"""What a prompt could have at all: nothing of what stays whatever leaves."""

from pathlib import Path

import pytest
from fake_engine import Workshop

from mlxd.daemon.engine_memory import MostForPrompts
from mlxd.memory.footprint import Footprint, MemoryLimits
from mlxd.memory.guard import MemoryGuard
from mlxd.registry.registry import ModelRegistry
from mlxd.registry.residency import MemoryReading, Policy
from mlxd.registry.spec import ModelSpec

LIMITS = MemoryLimits(ceiling_bytes=1000, soft_bytes=900, limit="memory.ceiling")
SIZES = {"own": 50, "pinned": 30, "idle": 20, "pinned-elsewhere": 10}
# Bytes that their processes take beside them; "pinned" is on a lane of the daemon.
PROCESSES = {"own": 7, "idle": 5, "pinned-elsewhere": 3}
BASE = 100


class Probe:
    def sample(self) -> Footprint:
        return Footprint(BASE, 0, 0, 10_000, 5_000)


@pytest.fixture
async def most():
    specs = [ModelSpec(name, Path(name), weight_bytes=size) for name, size in SIZES.items()]
    reading = MemoryReading(900, "memory.soft", BASE, BASE)
    registry = ModelRegistry(specs, Policy(), Workshop(), lambda **_: reading, load_need=lambda spec: spec.weight_bytes)
    for name in SIZES:
        await registry.load(name, pinned="pinned" in name)
    return MostForPrompts(
        MemoryGuard(Probe(), LIMITS),
        base=lambda: BASE,
        processes=lambda models: sum(PROCESSES.get(name, 0) for name in models),
        registry=lambda: registry,
    )


async def test_idle_models_leave_for_a_prompt_and_pinned_ones_do_not_with_all_that_their_processes_take(most):
    assert most.of("own")() == 900 - BASE - (50 + 7) - 30 - (10 + 3)
    assert most.of("pinned")() == 900 - BASE - 30 - (10 + 3)
