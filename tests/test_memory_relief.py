"""The climb over the rungs, beside whatever happens to memory meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

from structlog.testing import capture_logs

from mlxd.daemon.memory_relief import MemoryRelief
from mlxd.engines.memory_share import OFF, MemoryShare
from mlxd.memory.crossing import RecoveredEvent, SoftEvent
from mlxd.memory.footprint import Footprint, MemoryLimits, Pressure
from mlxd.memory.guard import MemoryGuard
from mlxd.memory.ladder import Rung

LIMITS = MemoryLimits(1000, 900, "memory.ceiling")
SOFT = SoftEvent(950, 900, "memory.ceiling", Pressure.SOFT)


class Probe:
    """Measures what a test says."""

    used = 950

    def sample(self) -> Footprint:
        return Footprint(self.used, 0, 0, 10**6, 10**6)

    def metal_limit(self) -> None:
        return None

    wired_limit = metal_limit


class House:
    """A relief whose rungs win nothing; `during` is what happens while idle models are evicted."""

    def __init__(self, during: Callable[[], Awaitable[None]] | None = None, reclaim: Exception | None = None) -> None:
        self.probe = Probe()
        self.taken: list[Rung] = []
        self.share = MemoryShare()
        self._during, self._broken = during, reclaim
        registry = SimpleNamespace(trim_prefixes=self._trim, shed=self._shed, engines=dict)
        guard = MemoryGuard(self.probe, LIMITS)
        lanes = SimpleNamespace(reclaim=self._reclaim)
        self.relief = MemoryRelief(guard, cast(Any, registry), cast(Any, lanes), self.share, self.taken.append)

    async def _reclaim(self) -> None:
        if self._broken is not None:
            raise self._broken

    async def _trim(self, over: int, reason: str) -> int:
        return 0

    async def _shed(self, over: int, reason: str) -> None:
        if self._during is not None:
            await self._during()


async def test_every_rung_is_taken_in_order_and_the_brakes_are_let_go_when_memory_recovers():
    house = House()
    await house.relief.on_soft(SOFT)
    await house.relief.on_soft(SOFT)
    assert house.taken == [Rung(number) for number in range(1, 6)]
    assert (house.share.brake.hold, house.share.brake.slow) == (True, True)
    await house.relief.on_recovered(RecoveredEvent(800, 900))
    assert house.share.brake == OFF


async def test_a_climb_that_recovery_overtakes_leaves_no_brake_on():
    async def recovers() -> None:
        await house.relief.on_recovered(RecoveredEvent(800, 900))

    house = House(recovers)
    await house.relief.on_soft(SOFT)
    assert house.taken[-1] is Rung.EVICT_IDLE
    assert house.share.brake == OFF


async def test_a_rung_that_breaks_does_not_keep_memory_from_the_others():
    house = House(reclaim=RuntimeError("no such stream"))
    with capture_logs() as logs:
        await house.relief.on_soft(SOFT)
    assert house.taken == [Rung(number) for number in range(1, 6)]
    assert [log["rung"] for log in logs if log["event"] == "memory.rung_broke"] == ["clear_cache"]
