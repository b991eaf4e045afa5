"""Random visits, departures, faults and unloads on two embedding engines that share memory: all is given back."""

from __future__ import annotations

import asyncio
import random
from array import array
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from embedding_harness import ask
from engine_harness import lane_pool
from tiny_encoders import build_encoder
from tiny_models import cached

from mlxd.engines.embedding_engine import EmbeddingEngine
from mlxd.engines.embedding_runner import EmbeddingRunner
from mlxd.engines.embedding_types import EmbeddingOutput, EmbeddingRequest, EncoderInput
from mlxd.engines.errors import EngineError, FootprintExceeded
from mlxd.engines.lanes import LanePool
from mlxd.engines.memory_share import MemoryShare
from mlxd.engines.types import EngineConfig

ROOM = 1_500_000
LENGTHS = (1, 3, 8, 20, 60, 128)


class Life:
    """One model, loaded and unloaded again and again, and everybody who asked it for something."""

    def __init__(self, folder: Path, lanes: LanePool, share: MemoryShare, dice: random.Random) -> None:
        self.folder, self.lanes, self.share, self.dice = folder, lanes, share, dice
        self.engine: EmbeddingEngine | None = None
        self.visits: list[asyncio.Task[EmbeddingOutput]] = []
        self.names = count()

    async def load(self) -> EmbeddingEngine:
        config = EngineConfig("m", self.folder, 512, prefill_chunk=8, hold_timeout=0.2, max_step_failures=5)
        self.engine = engine = EmbeddingEngine(config, self.lanes, memory=self.share.stake("m"))
        if self.dice.random() < 0.1:
            engine.cancel_load()
        try:
            await engine.load()
        except EngineError:
            self.engine = None
            return await self.load()
        return engine

    async def act(self) -> None:
        engine = self.engine or await self.load()
        match self.dice.choices(("ask", "leave", "cancel", "abort", "unload", "go on"), (40, 15, 10, 3, 2, 30))[0]:
            case "ask":
                lengths = self.dice.choices(LENGTHS, k=self.dice.choice((1, 2, 40)))
                inputs = tuple(EncoderInput(array("i", [self.dice.randrange(600)] * length)) for length in lengths)
                self.visits.append(asyncio.create_task(ask(engine, EmbeddingRequest(f"r{next(self.names)}", inputs))))
            case "leave" if self.visits:
                self.dice.choice(self.visits).cancel()
            case "cancel" if self.visits:
                engine.cancel(f"r{self.dice.randrange(len(self.visits))}")
            case "abort":
                engine.abort_all(FootprintExceeded(2, 1, "limit"))
            case "unload":
                await self.unload()
            case _:
                await asyncio.sleep(self.dice.choice((0, 0.002)))

    async def unload(self) -> None:
        if self.engine is not None:
            engine, self.engine = self.engine, None
            assert await engine.close(FootprintExceeded(2, 1, "unloaded"), 20)
            assert engine.requests() == ()


@pytest.mark.parametrize("seed", range(2))
async def test_whatever_happens_everybody_is_answered_and_everything_given_back(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(seed)
    folder = cached("encoder", build_encoder)
    run = EmbeddingRunner.run
    loaded = False

    def sometimes(runner: EmbeddingRunner, inputs: Any) -> tuple[bytes | None, ...]:
        if loaded and dice.random() < 0.03:
            raise RuntimeError("boom")
        return run(runner, inputs)

    monkeypatch.setattr(EmbeddingRunner, "run", sometimes)
    share = MemoryShare(lambda: ROOM)
    async with AsyncExitStack() as held:
        lanes = await held.enter_async_context(lane_pool())
        lives = [Life(folder, lanes, share, random.Random((seed, name).__repr__())) for name in ("a", "b")]
        for life in lives:
            await life.load()
        loaded = True
        for _ in range(50):
            for life in lives:
                await life.act()
        visits = [visit for life in lives for visit in life.visits]
        async with asyncio.timeout(20):
            ended = await asyncio.gather(*visits, return_exceptions=True)
        assert {type(one) for one in ended} >= {EmbeddingOutput, asyncio.CancelledError, FootprintExceeded}
        assert all(isinstance(one, EmbeddingOutput | asyncio.CancelledError | EngineError) for one in ended)
        for life in lives:
            await life.unload()
        assert share.spare() == ROOM
        assert not share.stake("somebody").others_run()
