"""What becomes of an engine whose process is killed, crashes, stops or cannot start: at any time, and for good."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from tiny_models import build_tiny_model, cached
from worker_harness import PATIENCE, asked, children, is_gone, pid_of, read, send, until, worker_engine, worker_pool

from mlxd.engines.errors import EngineClosed, EngineCrashed, EngineDead, LoadError, LoadFailure
from mlxd.engines.types import RequestState, SamplingParams

LONG = SamplingParams(max_tokens=1500, temperature=0, ignore_eos=True)
SHORT = SamplingParams(max_tokens=9, temperature=0)
DEADLY = [signal.SIGKILL, signal.SIGSEGV]


@pytest.fixture(scope="module")
def model() -> Path:
    return cached("tiny", lambda out: build_tiny_model(out, size="tiny"))


@pytest.mark.parametrize("number", DEADLY, ids=lambda number: number.name)
async def test_a_death_at_work_ends_its_requests_at_once_and_tells_how(tmp_path, model, number):
    deaths: list[EngineDead] = []
    async with worker_pool(tmp_path) as workers:
        engine = worker_engine(model, workers, on_dead=deaths.append)
        await engine.load()
        pid = pid_of(engine)
        async with engine.generate(await asked(engine, "Count", LONG, "r")) as outputs:
            await anext(outputs)
            send(pid, number)
            killed = time.monotonic()
            with pytest.raises(EngineCrashed, match=number.name):
                await read(outputs)
            assert time.monotonic() - killed < 1
        assert is_gone(pid)
        (death,) = deaths
        assert death.facts["signal"] == number.name
        assert len(death.suspects) == 1
        assert engine.stats().running == 0
        assert await engine.close(EngineClosed("over"), 5)


async def test_a_crash_of_native_code_leaves_its_last_words(tmp_path, model):
    deaths: list[EngineDead] = []
    async with worker_pool(tmp_path) as workers:
        engine = worker_engine(model, workers, on_dead=deaths.append)
        await engine.load()
        send(pid_of(engine), signal.SIGABRT)
        await until(lambda: bool(deaths))
        output = deaths[0].facts["output"]
        assert isinstance(output, list)
        assert any("Fatal Python error: Aborted" in line for line in output)


async def test_a_stopped_worker_is_killed_within_its_bound(tmp_path, model):
    async with worker_pool(tmp_path) as workers:
        engine = worker_engine(model, workers)
        await engine.load()
        pid = pid_of(engine)
        async with engine.generate(await asked(engine, "Count", LONG, "r")) as outputs:
            await anext(outputs)
            send(pid, signal.SIGSTOP)
            stopped = time.monotonic()
            with pytest.raises(EngineCrashed, match="said nothing"):
                await read(outputs)
            assert time.monotonic() - stopped < PATIENCE + 2
        await until(lambda: is_gone(pid))


@pytest.mark.parametrize("number", [*DEADLY, signal.SIGSTOP], ids=lambda number: number.name)
async def test_a_death_during_a_load_is_a_failed_load(tmp_path, model, number):
    async with worker_pool(tmp_path) as workers:
        engine = worker_engine(model, workers)
        begun = asyncio.Event()
        loading = asyncio.create_task(engine.load(lambda _: begun.set()))
        async with asyncio.timeout(30):
            await begun.wait()
        send(pid_of(engine), number)
        with pytest.raises(LoadError) as raised:
            await loading
        assert raised.value.reason is LoadFailure.CRASHED
        assert await engine.close(EngineClosed("over"), 5)


async def test_a_death_during_a_prefill_ends_those_who_wait_too(tmp_path, model):
    async with worker_pool(tmp_path) as workers:
        engine = worker_engine(model, workers, prefill_chunk=4, max_running=1)
        await engine.load()
        first, second = [await asked(engine, "Count " * 300, SHORT, name) for name in "ab"]
        async with engine.generate(first) as one, engine.generate(second) as other:
            await until(lambda: any(each.state is RequestState.PREFILLING for each in engine.requests()))
            send(pid_of(engine), signal.SIGKILL)
            for outputs in (one, other):
                with pytest.raises(EngineCrashed):
                    await anext(outputs)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=lambda number: number.name)
async def test_a_death_while_it_closes_is_an_end_too(tmp_path, model, number):
    async with worker_pool(tmp_path) as workers:
        engine = worker_engine(model, workers)
        await engine.load()
        pid = pid_of(engine)
        send(pid, number)
        assert await engine.close(EngineClosed("over"), 1)
        await until(lambda: is_gone(pid))


async def test_whoever_waits_for_a_tokenizer_is_told_of_the_death(tmp_path, model):
    async with worker_pool(tmp_path) as workers:
        engine = worker_engine(model, workers)
        await engine.load()
        tokenizer = engine.tokenizer
        send(pid_of(engine), signal.SIGSTOP)
        waiting = asyncio.create_task(asyncio.to_thread(tokenizer.encode, "hello"))
        await asyncio.sleep(0)
        send(pid_of(engine), signal.SIGKILL)
        with pytest.raises(EngineCrashed):
            await waiting
        with pytest.raises(EngineCrashed):
            await asyncio.to_thread(tokenizer.encode, "hello")


async def test_an_engine_that_is_given_up_gives_its_memory_back_all_the_same(tmp_path, model):
    deaths: list[EngineDead] = []
    async with worker_pool(tmp_path) as workers:
        engine = worker_engine(model, workers, on_dead=deaths.append)
        await engine.load()
        pid = pid_of(engine)
        async with engine.generate(await asked(engine, "Count", LONG, "r")) as outputs:
            await anext(outputs)
            engine.lose(EngineCrashed("it hangs"))
            with pytest.raises(EngineCrashed, match="it hangs"):
                await read(outputs)
        assert len(deaths) == 1
        assert await engine.close(EngineClosed("over"), 5)
        await until(lambda: is_gone(pid))
        assert len(deaths) == 1


async def test_a_worker_that_speaks_another_protocol_is_refused(tmp_path, model):
    async with worker_pool(tmp_path, protocol="another") as workers:
        with pytest.raises(LoadError, match="restart the daemon"):
            await worker_engine(model, workers).load()


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("import sys; sys.exit('no such library')", "exit code 1"),
        ("import os, sys; os.write(int(sys.argv[1]), b'x' * 100)", "no message"),
    ],
)
async def test_a_worker_that_cannot_start_is_a_failed_load(tmp_path, model, program, said):
    async with worker_pool(tmp_path, command=lambda fd: [sys.executable, "-c", program, str(fd)]) as workers:
        with pytest.raises(LoadError, match=said) as raised:
            await worker_engine(model, workers).load()
        assert raised.value.reason is LoadFailure.CRASHED


async def test_without_another_process_to_be_had_the_load_fails(tmp_path, model):
    async with worker_pool(tmp_path, command=lambda _: [str(tmp_path / "nothing")]) as workers:
        with pytest.raises(LoadError, match="no process could be started"):
            await worker_engine(model, workers).load()


async def test_nothing_is_left_of_workers_that_came_and_went(tmp_path, model):
    async with worker_pool(tmp_path) as workers:

        async def cycle(number: signal.Signals | None) -> None:
            engine = worker_engine(model, workers)
            await engine.load()
            if number is not None:
                send(pid_of(engine), number)
                await until(lambda: engine.stats().running == 0 and is_gone(pid_of(engine)))
            assert await engine.close(EngineClosed("over"), 5)

        own = psutil.Process()

        def left() -> dict[str, int]:
            # those of the event loop's executor stay, and come as they are needed
            threads = [one for one in threading.enumerate() if not one.name.startswith("asyncio_")]
            return {"files": own.num_fds(), "threads": len(threads), "tasks": len(asyncio.all_tasks())}

        await cycle(None)
        before = left()
        for number in (signal.SIGKILL, None, signal.SIGSEGV):
            await cycle(number)
        assert not children()
        with contextlib.suppress(TimeoutError):
            await until(lambda: all(left()[kind] <= before[kind] for kind in before))
        after = left()
        assert {kind: max(after[kind], before[kind]) for kind in before} == before


async def test_a_worker_ends_with_the_process_that_started_it(tmp_path, model):
    program = f"""
import asyncio, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from worker_harness import *
async def main():
    async with worker_pool(Path({str(tmp_path)!r})) as workers:
        engine = worker_engine(Path({str(model)!r}), workers)
        await engine.load()
        print(engine.pid, flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
    assert parent.stdout is not None
    worker = int(await parent.stdout.readline())
    assert psutil.Process(worker).cmdline()[0].startswith(f"mlxd: {model.name}")
    send(worker, signal.SIGSTOP)  # it could not notice by itself
    parent.kill()
    await parent.wait()
    # nobody waits for an orphan in a container without an init
    await until(lambda: is_gone(worker) or psutil.Process(worker).status() == psutil.STATUS_ZOMBIE, within=2)
