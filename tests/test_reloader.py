"""One reload at a time, none lost, and none that is half done."""

from __future__ import annotations

import asyncio
import threading

import pytest
from msgspec import structs
from reload_daemon import settings_for, watched
from structlog.testing import capture_logs
from tiny_models import place_models

from mlxd.daemon.config_errors import ConfigError, Problem
from mlxd.daemon.config_source import ConfigSource
from mlxd.daemon.disk_thread import DiskThread
from mlxd.daemon.settings import EngineSettings, ModelSettings
from mlxd.daemon.units import Size
from mlxd.registry.errors import ShuttingDown


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "models" / "a").mkdir(parents=True)
    (tmp_path / "models" / "a" / "config.json").write_text("{}")
    return tmp_path / "models"


class File:
    """A configuration that is read when the test lets it; `reading` says that somebody reads."""

    def __init__(self, settings):
        self.settings = settings
        self.reads = 0
        self.error = None
        self.reading = asyncio.Event()
        self.may_read = threading.Event()
        self.may_read.set()
        self._loop = asyncio.get_running_loop()

    def read(self):
        self.reads += 1
        found, error = self.settings, self.error
        self._loop.call_soon_threadsafe(self.reading.set)
        assert self.may_read.wait(20)
        if error is not None:
            raise error
        return found

    def name(self, alias):
        self.settings = structs.replace(self.settings, model=(ModelSettings("a", aliases=(alias,)),))


def aliases(daemon):
    return daemon.registry.model("a").spec.aliases


async def until(holds):
    while not holds():
        await asyncio.sleep(0)


async def test_a_trigger_during_a_reload_is_not_lost(folder):
    file = File(settings_for(folder))
    async with watched(folder, read=file.read) as daemon:
        file.may_read.clear()
        file.name("old")
        first = asyncio.create_task(daemon.reloader.reload("operator"))
        await file.reading.wait()
        file.name("new")
        daemon.reloader.request()
        daemon.reloader.request()
        file.may_read.set()
        assert (await first).models.changed == ("a",)
        await until(lambda: aliases(daemon) == ("new",))
        assert file.reads == 2


async def test_reloads_take_turns(folder):
    file = File(settings_for(folder))
    async with watched(folder, read=file.read) as daemon:
        file.may_read.clear()
        calls = [asyncio.create_task(daemon.reloader.reload("operator")) for _ in range(3)]
        await file.reading.wait()
        for _ in range(20):
            await asyncio.sleep(0)
        assert file.reads == 1
        file.may_read.set()
        await asyncio.gather(*calls)
        assert file.reads == 3


async def test_a_caller_that_leaves_leaves_nothing_half_done(folder):
    file = File(settings_for(folder))
    async with watched(folder, read=file.read) as daemon:
        before = daemon.live.now
        file.may_read.clear()
        file.name("x")
        call = asyncio.create_task(daemon.reloader.reload("operator"))
        await file.reading.wait()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        file.may_read.set()
        assert daemon.live.now is before
        await daemon.reloader.reload("operator")
        assert aliases(daemon) == ("x",)


async def test_a_reload_that_the_shutdown_overtakes_changes_nothing(folder):
    file = File(settings_for(folder))
    async with watched(folder, read=file.read) as daemon:
        before = daemon.live.now
        file.may_read.clear()
        file.name("x")
        call = asyncio.create_task(daemon.reloader.reload("operator"))
        await file.reading.wait()
        closing = asyncio.create_task(daemon.registry.close(1))
        await until(lambda: daemon.registry.closing)
        file.may_read.set()
        with pytest.raises(ShuttingDown):
            await call
        assert await closing
        assert daemon.live.now is before


async def test_after_an_invalid_file_and_after_a_bug_the_next_request_is_served(folder):
    file = File(settings_for(folder))
    with capture_logs() as logs:
        async with watched(folder, read=file.read) as daemon:
            for error in (ConfigError(Problem("odd", "server.port")), RuntimeError("a bug")):
                file.error = error
                file.reading.clear()
                daemon.reloader.request()
                await file.reading.wait()
                await until(lambda count=file.reads: sum("reload_" in log["event"] for log in logs) == count)
            file.error = None
            file.name("x")
            daemon.reloader.request()
            await until(lambda: aliases(daemon) == ("x",))
    assert [log["event"] for log in logs if "reload_" in log["event"]] == [
        "daemon.reload_refused",
        "daemon.reload_broke",
    ]


async def test_engines_in_memory_get_other_limits_and_memory_keeps_its_own(folder, micro_model):
    place_models(folder, {"m": micro_model})
    file = File(settings_for(folder))
    async with watched(folder, read=file.read) as daemon:
        await daemon.registry.load("m")
        engine, limits = daemon.registry.engines()["m"], daemon.guard.limits
        file.settings = structs.replace(file.settings, engine=EngineSettings(max_running=3, prefill_chunk=64))
        await daemon.reloader.reload("operator")
        assert daemon.registry.engines()["m"] is engine
        assert (engine.config.max_running, engine.config.prefill_chunk) == (3, 64)
        assert daemon.guard.limits is limits


async def test_a_place_on_the_disk_for_prefixes_can_be_given_while_it_runs(folder, micro_model):
    place_models(folder, {"m": micro_model})
    file = File(settings_for(folder))
    async with watched(folder, read=file.read) as daemon:
        await daemon.registry.load("m")
        entry = ModelSettings("m", engine={"prefix_cache_disk": Size(bytes=10**9)})
        file.settings = structs.replace(file.settings, model=(entry,))
        diff = await daemon.reloader.reload("operator")
        assert diff.models.reloaded == ("m",)
        async with daemon.registry.lease("m") as lease:
            assert lease.engine.config.prefix_disk_bytes == 10**9
        assert (folder.parent / "state" / "prefixes").is_dir()


# ---- where it is read from


def source(home, **environ):
    return ConfigSource({}, {"HOME": str(home), **environ}, None)


def test_a_file_that_came_after_the_start_counts_and_may_not_go_again(tmp_path):
    file = tmp_path / ".config/mlxd/mlxd.toml"
    given = source(tmp_path)
    assert given.load().path is None
    file.parent.mkdir(parents=True)
    file.write_text("server.port = 7")
    assert given.load().settings.server.port == 7
    file.unlink()
    with pytest.raises(ConfigError, match="the file that the daemon was started with, but there is none"):
        given.load()


def test_the_file_of_the_start_counts_whatever_else_comes(tmp_path):
    first, second = tmp_path / "first.toml", tmp_path / ".config/mlxd/mlxd.toml"
    first.write_text("server.port = 1")
    second.parent.mkdir(parents=True)
    second.write_text("server.port = 2")
    given = source(tmp_path, MLXD_CONFIG=str(first))
    assert [given.load().settings.server.port for _ in range(2)] == [1, 1]


def test_what_a_start_would_refuse_is_told_with_its_line(tmp_path):
    file = tmp_path / "mlxd.toml"
    file.write_text('[engine]\nprefix_cache = "off"\nprefix_cache_disk = "1GB"\n')
    given = source(tmp_path, MLXD_CONFIG=str(file))
    with pytest.raises(ConfigError, match=f"^{file}:3: engine.prefix_cache_disk"):
        given.load_checked()


# ---- off the event loop


async def test_a_thread_that_never_ends_is_left_behind():
    stuck, began = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def work():
        loop.call_soon_threadsafe(began.set)
        stuck.wait()

    waiting = asyncio.create_task(DiskThread().run(work))
    await began.wait()
    [thread] = [thread for thread in threading.enumerate() if thread.name == "disk"]
    assert thread.daemon
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert waiting.cancelled()
    stuck.set()
    thread.join(10)
    assert not thread.is_alive()
