"""A real daemon process whose models recite without MLX, and hang where a test has put a pipe.

Run as a program it is `mlxd` with that backend. A pipe `step-alpha` in the folder of faults holds the next step of
alpha in native code until somebody writes to it; `load-`, `close-` and `tokenize-` hold what they say, `reload` a look
at the configuration. SIGUSR1 holds the event loop in the same way, at `loop`, and SIGUSR2 keeps the interpreter's lock
for good.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from api_fakes import VOCABULARY, FakeTokenizer
from daemon_faults import IN_THREADS
from daemon_process import Daemon, daemon
from fake_runner import FakeRunner

from mlxd.daemon import serve
from mlxd.daemon.__main__ import main
from mlxd.daemon.app import Daemon as App
from mlxd.daemon.settings import LoadedConfig
from mlxd.engines.backend import RunnerStep
from mlxd.engines.load_watch import LoadWatch
from mlxd.engines.types import EngineConfig, ModelInfo

VARIABLE = "MLXD_TEST_FAULTS"
# Seconds of a step: an answer of a thousand tokens takes some.
STEP = 0.005


@dataclass(frozen=True)
class Faults:
    """The folder of pipes, from both sides."""

    folder: Path

    def hold(self, place: str) -> Path:
        """Let the daemon hang there, until `let_go`."""
        pipe = self.folder / place
        os.mkfifo(pipe)
        return pipe

    def let_go(self, place: str) -> None:
        """What hangs there goes on, and nothing hangs there any more."""
        pipe = self.folder / place
        with pipe.open("w"):
            pipe.unlink()

    async def met(self, place: str) -> None:
        """Return once the daemon hangs there."""
        async with asyncio.timeout(20):
            while not (self.folder / f"{place}.met").exists():
                await asyncio.sleep(0.01)

    def meet(self, place: str) -> None:
        """In the daemon: hang here if that is wanted. Opening a pipe waits for whoever opens the other end."""
        pipe = self.folder / place
        if pipe.exists():
            (self.folder / f"{place}.met").touch()
            os.close(os.open(pipe, os.O_RDONLY))


@dataclass
class Reciter(FakeRunner):
    """Recites at a pace."""

    faults: Faults = field(default_factory=lambda: Faults(Path()))
    name: str = ""
    pace: threading.Event = field(default_factory=threading.Event)

    def step(self) -> RunnerStep:
        self.faults.meet(f"step-{self.name}")
        self.pace.wait(STEP)
        return super().step()

    def close(self) -> None:
        self.faults.meet(f"close-{self.name}")
        super().close()


class HoldingTokenizer(FakeTokenizer):
    def __init__(self, faults: Faults, name: str) -> None:
        super().__init__()
        self._faults = faults
        self._name = name

    def encode_chat(self, *arguments: Any, **options: Any) -> list[int]:
        self._faults.meet(f"tokenize-{self._name}")
        return super().encode_chat(*arguments, **options)


@dataclass
class Recital:
    """See Backend."""

    faults: Faults
    shares_processor: bool = False

    def lane_scope(self) -> AbstractContextManager[None]:
        return nullcontext()

    def load(self, config: EngineConfig, watch: LoadWatch) -> Reciter:
        self.faults.meet(f"load-{config.name}")
        tokenizer = HoldingTokenizer(self.faults, config.name)
        return Reciter(faults=self.faults, name=config.name, tokenizer=tokenizer, info=ModelInfo(VOCABULARY, 1000))

    def reclaim(self) -> None:
        """Nothing is kept."""


@contextmanager
def hanging_daemon(folder: Path, models: Path, config: str = "", **options: Any) -> Iterator[tuple[Daemon, Faults]]:
    """Serve as `daemon_process.daemon` does, with faults to be put in; what still hangs at the end is let go."""
    faults = Faults(folder / "faults")
    faults.folder.mkdir(parents=True, exist_ok=True)
    program = (sys.executable, __file__)
    environ = {**IN_THREADS, VARIABLE: str(faults.folder)}
    with daemon(folder, models, config, environ=environ, program=program, **options) as running:
        yield running, faults


def _serve(faults: Faults) -> int:
    # as a callback of its own: wherever the signal comes, the log's lock may be held, and all that would tell of it
    signal.signal(signal.SIGUSR1, lambda *_: asyncio.get_running_loop().call_soon_threadsafe(faults.meet, "loop"))
    # called with the interpreter's lock held, as a broken extension module would
    signal.signal(signal.SIGUSR2, lambda *_: ctypes.PyDLL(None).sleep(1000))
    build = serve.Daemon

    def faulty(*arguments: Any, read: Callable[[], LoadedConfig], **options: Any) -> App:
        def read_if_not_held() -> LoadedConfig:
            faults.meet("reload")
            return read()

        return build(*arguments, read=read_if_not_held, backend=lambda *_: Recital(faults), **options)

    serve.Daemon = faulty
    return main()


if __name__ == "__main__":
    sys.exit(_serve(Faults(Path(os.environ[VARIABLE]))))
