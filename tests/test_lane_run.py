"""A loop on a lane of this process, where there is none to be had, and what is asked of an engine that is over."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from mlxd.engines.core import EngineCore
from mlxd.engines.engine_base import EngineState
from mlxd.engines.errors import EngineClosed, EngineCrashed, LoadError, LoadFailure
from mlxd.engines.lanes import LanePool
from mlxd.engines.messages import Loaded
from mlxd.engines.step_result import StepResult
from mlxd.engines.tokenizer import Tokenizer
from mlxd.engines.types import EngineConfig, ModelInfo, PrefillEvictionRequest

OVER = EngineClosed("over")


def no_backend() -> Any:
    raise AssertionError("no lane gets so far")


async def test_without_another_thread_a_load_fails_and_leaves_nothing(tmp_path, monkeypatch):
    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    lanes = LanePool(no_backend)
    engine = EngineCore(EngineConfig("m", tmp_path, 100), lanes)
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    with pytest.raises(LoadError, match="no thread could be started") as raised:
        await engine.load()
    monkeypatch.undo()
    assert raised.value.reason is LoadFailure.INTERNAL
    assert await engine.close(OVER, 1)
    assert await engine.close(OVER, 1)
    assert lanes.close(1)


async def test_nobody_is_evicted_for_an_engine_that_was_given_up(tmp_path):
    asked: list[PrefillEvictionRequest] = []

    async def make_room(request: PrefillEvictionRequest) -> None:
        asked.append(request)

    lanes = LanePool(no_backend)
    engine = EngineCore(EngineConfig("m", tmp_path, 100), lanes, prefill_eviction_callback=make_room)
    engine.state = EngineState.LOADING
    engine._receive(Loaded(ModelInfo(1, 1), Tokenizer(None)))
    wish = StepResult(eviction=PrefillEvictionRequest("r", 2, 1, "prefill"))
    engine._receive(wish)
    await asyncio.sleep(0)
    assert len(asked) == 1
    engine.lose(EngineCrashed("it hangs"))
    engine._receive(wish)
    await asyncio.sleep(0)
    assert len(asked) == 1
    assert not await engine.close(OVER, 1)
