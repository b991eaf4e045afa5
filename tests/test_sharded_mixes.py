"""Random mixes of requests on several ranks: what nobody thought of would part the ranks, which ends the model."""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path

import pytest
from engine_harness import engine_on, lane_pool
from sharded_harness import Group, groups, sharded_host
from test_engine_mixes import (  # noqa: F401 - collected here too, on other fixtures
    OPTIONS,
    Alone,
    runner,
    test_nobody_is_mixed_up_lost_or_kept_for_ever,
)

from mlxd.engines.core import EngineCore


@pytest.fixture(scope="module", params=groups(), ids=str)
def houses(request, runner, tmp_path_factory):  # noqa: F811 - the fixture
    """Two engines on the same model: one on several ranks for the mixes, one in one piece where everybody is alone."""
    group: Group = request.param
    stop = asyncio.Event()
    folder: Path = tmp_path_factory.mktemp("mixes")

    async def hold(ready: asyncio.Future[tuple[EngineCore, EngineCore]]) -> None:
        async with (
            sharded_host(folder, group.shards) as split,
            lane_pool() as lanes,
            engine_on(group.folder, split, **OPTIONS) as mixed,
            engine_on(group.folder, lanes, **{**OPTIONS, "prefix_cache_bytes": 0}) as alone,
        ):
            ready.set_result((mixed, alone))
            await stop.wait()

    async def start():
        ready: asyncio.Future[tuple[EngineCore, EngineCore]] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(hold(ready))
        return task, await ready

    task, engines = runner.run(start())
    numbers = count()
    yield engines[0], Alone(engines[1], numbers), numbers
    stop.set()

    async def wait() -> None:
        await task

    runner.run(wait())
