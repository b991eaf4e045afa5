"""What happens once MLX is imported: the process may settle, unless a model is already on its way."""

import asyncio

import pytest
from api_calls import within

from mlxd.daemon.app import Daemon
from mlxd.daemon.settings import ModelsSettings, Settings
from mlxd.memory.probe import SystemProbe


@pytest.fixture
async def warming(models_dir, tiny_model):
    """A daemon that is not started yet, and the moments at which it told that MLX is imported."""
    told = asyncio.Queue()
    settings = Settings(models=ModelsSettings(dirs=(models_dir({"tiny": tiny_model}),)))
    daemon = Daemon(settings, SystemProbe(), hf_cache=None, on_imported=lambda: told.put_nowait(None))
    yield daemon, told
    assert await daemon.close()


async def test_the_end_of_the_import_is_told_once(warming):
    daemon, told = warming
    daemon.start()
    await within(told.get())
    await daemon.registry.load("tiny")
    assert told.empty()


async def test_it_is_not_told_when_a_model_is_on_its_way(warming):
    daemon, told = warming
    loading = asyncio.ensure_future(daemon.registry.load("tiny"))
    await asyncio.sleep(0)
    daemon.start()
    warming_up = [task for task in asyncio.all_tasks() if task.get_name() == "warm_up"]
    await asyncio.gather(loading, *warming_up)
    assert warming_up
    assert told.empty()
