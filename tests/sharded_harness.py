"""Models on several ranks of this machine, on engines that know nothing of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from tiny_models import build_tiny_model, cached
from worker_harness import worker_pool

from mlxd.engines.engine_run import EngineRun, RunPlan
from mlxd.engines.loader import check_config, read_tokenizer
from mlxd.engines.messages import Loaded, LoopEvent
from mlxd.engines.shards import ShardHost, Shards
from mlxd.engines.tokenizer import Tokenizer
from mlxd.engines.worker.workers import Workers


@dataclass(frozen=True, eq=False)
class Group:
    """Ranks of this machine, and a small model that can be split over them so."""

    name: str
    ranks: int
    model: dict[str, Any]
    sharding: Any = "tensor"

    def __str__(self) -> str:
        return self.name

    @property
    def shards(self) -> Shards:
        return Shards((ShardHost("localhost"),) * self.ranks, self.sharding)

    @property
    def folder(self) -> Path:
        return cached(f"split-{self.name}", partial(build_tiny_model, size="micro", **self.model))


TWO = Group("two", 2, {"num_attention_heads": 2, "num_key_value_heads": 2})
THREE = Group(
    "three",
    3,
    {"hidden_size": 96, "num_attention_heads": 3, "num_key_value_heads": 3},
)
PIPES = Group("pipes", 2, {"kind": "qwen2", "num_hidden_layers": 3}, "pipeline")
THREE_PIPES = replace(PIPES, name="three-pipes", ranks=3)
GROUPS = (TWO, THREE, PIPES, THREE_PIPES)


def groups(*quick: Group) -> list[Any]:
    """All groups as parameters; with those that are not `quick` tests take long, and are soak tests."""
    return [pytest.param(group, marks=() if group in quick else pytest.mark.soak) for group in GROUPS]


class ShardedHost:
    """See EngineHost: every engine gets ranks, and a tokenizer that may be used on the event loop. `remote` is that of
    the last one's process.
    """

    def __init__(self, workers: Workers, shards: Shards) -> None:
        self._workers = workers
        self._shards = shards
        self.remote: Tokenizer | None = None

    def engine_run(self, plan: RunPlan) -> EngineRun:
        config = replace(plan.config, shards=self._shards, max_step_failures=1)
        local = Tokenizer(read_tokenizer(config.path, check_config(config.path)))

        def receive(event: LoopEvent) -> None:
            if isinstance(event, Loaded):
                self.remote = event.tokenizer
                event = replace(event, tokenizer=local)
            plan.receive(event)

        return self._workers.engine_run(replace(plan, config=config, receive=receive))


@asynccontextmanager
async def sharded_host(folder: Path, shards: Shards) -> AsyncIterator[ShardedHost]:
    """A host for engines; no process is left behind."""
    async with worker_pool(folder) as workers:
        yield ShardedHost(workers, shards)


def ranks_of(pid: int) -> list[psutil.Process]:
    """The other ranks of a worker, in order."""
    return sorted(psutil.Process(pid).children(), key=lambda child: child.pid)


def tells_of(rank: int, said: str) -> bool:
    """Whether an error says that this rank was killed. MLX may crash rank 0 before it can tell that another is gone."""
    if rank == 0:
        return "killed by SIGKILL" in said
    return f"rank {rank} on localhost is gone" in said or "SIGSEGV, as MLX may be when another rank is gone" in said


def has_ended(pid: int) -> bool:
    """Whether a process runs no more. One whose parent was killed may wait, dead, for the machine's first process."""
    try:
        process = psutil.Process(pid)
        return process.status() == psutil.STATUS_ZOMBIE and process.ppid() == 1
    except psutil.NoSuchProcess:
        return True


def ports_of(processes: Iterable[psutil.Process]) -> set[int]:
    """The ports that processes have open, listening or connected."""
    return {connection.laddr.port for process in processes for connection in process.net_connections("tcp")}


def listening(ports: set[int]) -> set[int]:
    """Those of the ports that anybody of this machine listens on."""
    found = {connection.laddr.port for connection in psutil.net_connections("tcp") if connection.status == "LISTEN"}
    return found & ports
