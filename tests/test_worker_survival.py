"""What a worker with a model takes: signals that are meant for the daemon, hostile messages, and faults of its own."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tiny_models import build_tiny_model, cached
from worker_harness import asked, pid_of, read, send, worker_engine, worker_pool

from mlxd.engines.core import EngineCore
from mlxd.engines.errors import EngineCrashed, EngineDead, LoadError, LoadFailure, StepFailed
from mlxd.engines.types import RequestOutput, SamplingParams
from mlxd.engines.worker.process import Command
from mlxd.engines.worker.worker_run import WorkerRun

SHORT = SamplingParams(max_tokens=9, temperature=0)
LONG = SamplingParams(max_tokens=1500, temperature=0, ignore_eos=True)
WRONG_REQUEST = """
made = worker.text_request
def text_request(add, held):
    return held.get(77) if add.id == "wrong" else made(add, held)
worker.text_request = text_request
"""
WRONG_FACTS = """
def facts_of(tokenizer):
    raise LookupError("no such token")
worker.facts_of = facts_of
"""
WRONG_STEPS = """
def step(self, result):
    raise LookupError("no such request")
worker.Departures.step = step
"""


@pytest.fixture(scope="module")
def model() -> Path:
    return cached("tiny", lambda out: build_tiny_model(out, size="tiny"))


def with_fault(patch: str) -> Command:
    """The command of a worker in which something is not as it should be."""
    program = f"from mlxd.engines.worker import worker\n{patch}\nfrom mlxd.engines.worker.__main__ import main\nmain()"

    def command(fd: int) -> Sequence[str]:
        return [sys.executable, "-Ic", program, str(fd), str(os.getpid())]

    return command


async def answer(engine: EngineCore, request_id: str) -> str:
    async with engine.generate(await asked(engine, "Hello", SHORT, request_id)) as outputs:
        return RequestOutput.joined(await read(outputs)).text


async def test_a_worker_outlives_the_daemons_signals_and_wrong_requests_and_ends_for_garbage(tmp_path, model):
    deaths: list[EngineDead] = []
    async with worker_pool(tmp_path, command=with_fault(WRONG_REQUEST)) as workers:
        engine = worker_engine(model, workers, on_dead=deaths.append)
        await engine.load()
        async with engine.generate(await asked(engine, "Count", LONG, "long")) as outputs:
            await anext(outputs)
            before = await answer(engine, "before")
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                send(pid_of(engine), number)
            with pytest.raises(StepFailed, match="KeyError: 77"):
                await answer(engine, "wrong")
            assert await answer(engine, "after") == before
            assert deaths == []
            run = engine._run
            assert isinstance(run, WorkerRun)
            assert run._process is not None
            run._process._link._socket.send(b"\xff" * 64)
            with pytest.raises(EngineCrashed, match="exit code 1"):
                await read(outputs)
    output = deaths[0].facts["output"]
    assert isinstance(output, list)
    assert any("BadFrame" in line for line in output)


async def test_a_tokenizer_of_which_nothing_can_be_said_is_a_failed_load(tmp_path, model):
    async with worker_pool(tmp_path, command=with_fault(WRONG_FACTS)) as workers:
        with pytest.raises(LoadError, match="tokenizer: LookupError: no such token") as raised:
            await worker_engine(model, workers).load()
        assert raised.value.reason is LoadFailure.BAD_FILES


async def test_a_worker_ends_with_any_of_its_threads(tmp_path, model):
    async with worker_pool(tmp_path, command=with_fault(WRONG_STEPS)) as workers:
        engine = worker_engine(model, workers)
        await engine.load()
        with pytest.raises(EngineCrashed, match="exit code 1"):
            await answer(engine, "r")


async def test_a_failure_is_told_even_of_a_folder_whose_name_is_no_text(tmp_path):
    folder = tmp_path / os.fsdecode(b"models-\xff") / "model"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    async with worker_pool(tmp_path) as workers:
        with pytest.raises(LoadError) as raised:
            await worker_engine(folder, workers).load()
        assert raised.value.reason is not LoadFailure.CRASHED
