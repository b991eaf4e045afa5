"""Engines in processes of their own at the moments between two states, with a worker that does what the test says."""

from __future__ import annotations

import asyncio
import gc
import resource
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
import structlog
from scripted_worker import command
from worker_harness import children, is_gone, pid_of, read, send, until, worker_engine, worker_pool

from mlxd.engines.core import EngineCore
from mlxd.engines.engine_base import EngineState
from mlxd.engines.errors import EngineClosed, EngineCrashed, EngineDead, FootprintExceeded, LoadError, LoadFailure
from mlxd.engines.fingerprint import fingerprint
from mlxd.engines.memory_share import MemoryShare
from mlxd.engines.messages import AbortAll, Add
from mlxd.engines.types import Request, SamplingParams
from mlxd.engines.worker import process as process_module
from mlxd.engines.worker.log_relay import STRETCH
from mlxd.engines.worker.outgoing import Outgoing
from mlxd.engines.worker.worker_settings import WorkerSettings
from mlxd.engines.worker.workers import Workers

OVER = EngineClosed("over")


def request(name: str, prompt: tuple[int, ...] = (1, 2, 3)) -> Request:
    return Request(name, prompt, SamplingParams())


@asynccontextmanager
async def engine_with(behaviour: str, folder: Path, **options: object) -> AsyncIterator[tuple[EngineCore, Workers]]:
    """An engine that is not loaded, on a worker that behaves so."""
    async with worker_pool(folder, command=command(behaviour), patience=lambda: None) as workers:
        engine = worker_engine(folder, workers, **options)
        yield engine, workers
        assert await engine.close(OVER, 5)
        assert await engine.close(OVER, 5)
    assert not children()


async def test_what_is_changed_before_the_load_begins_reaches_the_worker(tmp_path):
    async with engine_with("loads_once_retuned", tmp_path) as (engine, _):
        engine.retune(engine.config.limits)
        async with asyncio.timeout(10):
            await engine.load()


async def test_a_load_that_is_cancelled_before_it_begins_stops_at_once(tmp_path):
    async with engine_with("loads_once_retuned", tmp_path) as (engine, _):
        engine.cancel_load()
        async with asyncio.timeout(10):
            with pytest.raises(LoadError) as raised:
                await engine.load()
        assert raised.value.reason is LoadFailure.CANCELLED


async def test_a_load_that_is_cancelled_as_it_ends_leaves_nothing(tmp_path):
    async with engine_with("serves", tmp_path) as (engine, _):
        loading = asyncio.create_task(engine.load())
        await asyncio.sleep(0)
        engine.cancel_load()
        with pytest.raises(LoadError):
            await loading
        assert engine.state is EngineState.CLOSED


async def test_an_engine_is_closed_while_it_gets_ready(tmp_path):
    async with engine_with("serves", tmp_path) as (engine, _):
        loading = asyncio.create_task(engine.load())
        await until(lambda: engine.pid is not None)
        assert await asyncio.gather(engine.close(OVER, 5), engine.close(OVER, 5)) == [True, True]
        with pytest.raises(LoadError):
            await loading


async def test_a_worker_that_is_killed_before_its_first_request_ends_it(tmp_path):
    async with engine_with("serves", tmp_path) as (engine, _):
        await engine.load()
        send(pid_of(engine), signal.SIGKILL)
        async with engine.generate(request("r")) as outputs:
            with pytest.raises(EngineCrashed, match="SIGKILL"):
                await read(outputs)
        with pytest.raises(EngineDead):
            engine.generate(request("s"))


async def test_whoever_waits_for_a_trim_or_for_free_buffers_is_not_left_waiting(tmp_path):
    async with engine_with("serves", tmp_path) as (engine, workers):
        await engine.load()
        waiting = [asyncio.create_task(engine.trim_prefix_cache(0)), asyncio.create_task(workers.reclaim())]
        await asyncio.sleep(0)
        send(pid_of(engine), signal.SIGKILL)
        _, late = await asyncio.wait(waiting, timeout=3)
        assert not late


async def test_all_that_may_have_begun_when_it_died_are_suspects_and_no_others(tmp_path):
    deaths: list[EngineDead] = []
    async with engine_with("dies_with_the_third", tmp_path, on_dead=deaths.append, max_running=2) as (engine, _):
        await engine.load()
        requests = [request(name, (number,)) for number, name in enumerate("abc")]
        readers = [engine.generate(each) for each in requests]
        for reader in readers:
            async with reader:
                with pytest.raises(EngineCrashed):
                    await read(reader)
        (dead,) = deaths
        assert dead.suspects == tuple(fingerprint(each) for each in requests[:2])


async def test_an_engine_that_was_given_up_is_closed_once_its_process_is_gone(tmp_path):
    async with engine_with("stays_when_closed", tmp_path) as (engine, _):
        await engine.load()
        pid = pid_of(engine)
        engine.lose(EngineCrashed("it hangs"))
        assert psutil.pid_exists(pid)
        assert await engine.close(OVER, 0)
        assert is_gone(pid)


async def test_an_engine_that_does_not_close_in_time_is_closed_once_its_process_is_gone(tmp_path):
    async with engine_with("stays_when_closed", tmp_path) as (engine, _):
        await engine.load()
        pid = pid_of(engine)
        assert await engine.close(OVER, 0.1)
        assert is_gone(pid)


async def test_a_process_that_cannot_be_ended_is_lost_with_its_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("mlxd.engines.engine_base.GONE", 0.1)
    async with worker_pool(tmp_path, command=command("stays_when_closed")) as workers:
        engine = worker_engine(tmp_path, workers)
        await engine.load()
        pid = pid_of(engine)
        monkeypatch.setattr(subprocess.Popen, "kill", lambda _: None)
        monkeypatch.setattr(subprocess.Popen, "send_signal", lambda *_: None)
        assert not await engine.close(OVER, 0.1)
        assert not await engine.close(OVER, 0.1)
        send(pid, signal.SIGKILL)


async def test_a_worker_that_closes_its_end_but_stays_is_dead(tmp_path, monkeypatch):
    monkeypatch.setattr(process_module, "LEAVING", 0.2)
    deaths: list[EngineDead] = []
    async with engine_with("closes_its_end", tmp_path, on_dead=deaths.append) as (engine, _):
        await engine.load()
        await until(lambda: bool(deaths))


async def test_a_worker_that_says_what_cannot_be_is_dead(tmp_path):
    async with engine_with("confuses_orders", tmp_path) as (engine, _):
        await engine.load()
        async with engine.generate(request("r")) as outputs:
            with pytest.raises(EngineCrashed, match="cannot be taken: KeyError: 99"):
                await read(outputs)


async def test_a_request_that_cannot_cross_is_refused_and_leaves_nothing(tmp_path):
    async with engine_with("serves", tmp_path) as (engine, _):
        await engine.load()
        for odd in (request("\ud800"), request("r", (2**40,))):
            with pytest.raises((ValueError, OverflowError)):
                engine.generate(odd)
        async with engine.generate(request("r")):
            assert engine.abort_all(OVER) == 1


async def test_a_worker_that_floods_the_log_holds_nobody_up(tmp_path):
    with structlog.testing.capture_logs() as logs:
        async with engine_with("floods", tmp_path) as (engine, _):
            await engine.load()
            began, rounds = time.monotonic(), 0
            while time.monotonic() - began < 1:
                await asyncio.sleep(0.01)
                rounds += 1
            assert rounds > 20
            assert await engine.close(OVER, 5)
    assert STRETCH <= len(logs) < 2 * STRETCH
    assert sum(line.get("lines", 0) for line in logs if line["event"] == "worker.lines_dropped") > STRETCH


async def test_without_descriptors_a_load_fails_and_the_next_one_works(tmp_path):
    async with worker_pool(tmp_path, command=command("serves")) as workers:
        engine = worker_engine(tmp_path, workers)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with socket.socket() as lowest:
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest.fileno() + 2, hard))
        try:
            with pytest.raises(LoadError, match=r"no process could be started.*Too many open files"):
                await engine.load()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert await engine.close(OVER, 1)
        assert await engine.close(OVER, 1)
        again = worker_engine(tmp_path, workers)
        await again.load()
        assert await again.close(OVER, 5)


async def test_a_dead_worker_has_no_memory_promised_any_more(tmp_path):
    share = MemoryShare(lambda: 1000)
    async with engine_with("serves", tmp_path, memory=share.stake("w")) as (engine, _):
        await engine.load()
        share.stake("other").set(300, 1)
        send(pid_of(engine), signal.SIGKILL)
        await until(lambda: engine.state is EngineState.DEAD)
        assert share.spare() == 700


def test_errors_that_were_carried_out_are_forgotten():
    outgoing = Outgoing()
    for number in range(1, 50):
        outgoing.form(Add(request(f"r{number}"), 0.0))
        error = FootprintExceeded(number, 1, "x")
        ended = outgoing.form(AbortAll(error))
        assert outgoing.ordered(ended.order) is error
    assert len(outgoing._orders) == 1


def test_each_model_has_a_folder_of_its_own_for_prefixes_whatever_it_is_called(tmp_path):
    settings = WorkerSettings(tmp_path, tmp_path / "prefixes")
    names = ["a", "A", "a/b", "a%2Fb", "x" * 500, "x" * 501, "ü" * 200, "..", "u\u0308", "\u00fc"]
    folders = {settings.prefix_folder(name) for name in names}
    assert len(folders) == len({str(folder).lower() for folder in folders}) == len(names)
    for folder in folders:
        folder.mkdir(parents=True)
        assert folder.parent == tmp_path / "prefixes"


def test_what_a_worker_keeps_is_no_matter_when_the_interpreter_ends():
    program = """
import asyncio
from mlxd.engines.worker.calls import Calls, HeldThere
async def main():
    calls = Calls(print)
    return [HeldThere(calls, number) for number in range(3)]
loop = asyncio.new_event_loop()
kept = loop.run_until_complete(main())
if {closed}:
    loop.close()
"""
    for closed in (True, False):
        ended = subprocess.run(
            [sys.executable, "-c", program.format(closed=closed)], capture_output=True, text=True, check=True
        )
        assert ended.stdout == ""
        assert "Error" not in ended.stderr


async def test_nothing_knows_an_engine_that_is_over(tmp_path):
    async with worker_pool(tmp_path, command=command("serves")) as workers:
        engine = worker_engine(tmp_path, workers)
        await engine.load()
        assert await engine.close(OVER, 5)
        assert not workers._runs
        assert not workers._turns.watchers
        run = weakref.ref(engine._run)
        del engine
        # the thread that has waited for the process knows it until it has ended
        await until(lambda: gc.collect() >= 0 and run() is None)
