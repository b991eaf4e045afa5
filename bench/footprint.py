"""What it takes to be there: start-up, and memory of the idle daemon, of an engine and of a request."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
from asking import Streams, ask, call, until
from figures import Figure, Report, at_most
from models import model_path, prompt_of, salted
from servers import MLXD, Server, mlxd

MB = 10**6
REQUESTS = 32


async def startup(report: Report, folder: Path) -> None:
    """From a command to what it shows, as a user runs it."""
    runs = report.rounds + 2
    empty = folder / "empty"
    empty.mkdir()
    ready = [_ready(empty) for _ in range(runs)]
    report.add(Figure("start to ready", "mlxd", "s", ready, aim=at_most(0.5)))
    report.add(Figure("mlxd --help", "mlxd", "s", [_command("--help") for _ in range(runs)], aim=at_most(0.2)))
    with mlxd(model_path("micro"), folder) as server:
        shown = [_command("ps", "--url", server.url) for _ in range(runs)]
    report.add(Figure("mlxd ps", "mlxd", "s", shown))
    bare = [_seconds([sys.executable, "-c", "import asyncio, aiohttp"]) for _ in range(runs)]
    report.add(Figure("python -c 'import asyncio, aiohttp', for comparison", "Python", "s", bare))


def _as_a_user() -> dict[str, str]:
    """The environment without a preload, and with compiled files kept."""
    left_out = ("LD_PRELOAD", "PYTHONDONTWRITEBYTECODE")
    return {name: value for name, value in os.environ.items() if name not in left_out}


def _ready(models: Path) -> float:
    environ = {**_as_a_user(), "MLXD_SERVER__STATE_DIR": str(models / "state"), "MLXD_MODELS__HF_CACHE": "false"}
    command = [MLXD, "serve", "--port", "0", "--models-dir", str(models), "--log-level", "error"]
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        seconds = time.perf_counter() - started
        assert line.startswith("mlxd ready"), line
        process.send_signal(signal.SIGTERM)
    return seconds


def _command(*arguments: str) -> float:
    return _seconds([MLXD, *arguments])


def _seconds(command: Sequence[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env=_as_a_user())
    return time.perf_counter() - started


async def memory(report: Report, folder: Path) -> None:
    """Resident memory of both modes: idle, with a micro model, and with requests that wait for it."""
    model = model_path("micro")
    for side, isolation, aim in (("mlxd", "thread", None), ("mlxd, process", "process", at_most(60))):
        config = f'[engine]\nisolation = "{isolation}"\nmax_running = 1\n'
        with mlxd(model, folder, config, name=side) as server:
            idle = _resident(server)
            report.add(Figure("idle daemon, no model", side, "MB", [idle], aim=aim))
            await ask(server, "Hello", 2)
            loaded = _resident(server)
            report.add(Figure("an engine of the micro model", side, "MB", [loaded - idle]))
            prompts = [salted(prompt_of(12), place) for place in range(REQUESTS)]
            async with Streams(server, prompts[:1], 4000):
                before = _resident(server)
                async with _Waiting(server, prompts[1:]):
                    each = 1000 * (_resident(server) - before) / (REQUESTS - 1)
            report.add(Figure("a request that waits", side, "kB", [each]))


class _Waiting:
    """Requests behind a stream that takes the only place."""

    def __init__(self, server: Server, prompts: Sequence[str]) -> None:
        self._server = server
        self._prompts = prompts

    async def __aenter__(self) -> None:
        self._tasks = [asyncio.create_task(ask(self._server, prompt, 1)) for prompt in self._prompts]
        await until(self._all_wait)

    async def _all_wait(self) -> bool | None:
        shown = await call(self._server, "GET", "/admin/requests")
        return True if shown.count(b'"waiting"') >= len(self._prompts) else None

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _resident(server: Server) -> float:
    """MB of the daemon and of its children; what children share with each other is counted once for each."""
    process = psutil.Process(server.pid)
    return sum(each.memory_info().rss for each in (process, *process.children(recursive=True))) / MB
