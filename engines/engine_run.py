"""Where an engine's loop runs, as the engine sees it: on a lane of this process, or in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from mlxd.engines.loop import EngineLoop
from mlxd.engines.memory_share import MemoryStake
from mlxd.engines.messages import LoopEvent, Message
from mlxd.engines.types import EngineConfig, EngineStats, RequestStatus


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What a loop is made of: its kind, what it was told, whom it tells, and its share of the memory.

    `receive` is called on the event loop. `step_lock` is held during each step, where steps of several engines cannot
    run side by side.
    """

    loop: type[EngineLoop[Any, Any]]
    config: EngineConfig
    receive: Callable[[LoopEvent], None]
    memory: MemoryStake
    step_lock: AbstractContextManager[object]
    clock: Callable[[], float] = time.monotonic


class EngineRun(Protocol):
    """One loop. Every method is called on the event loop, and none waits; `price` is for other threads too."""

    @property
    def pid(self) -> int | None:
        """The process that it has for itself, None for this one's."""

    @property
    def stats(self) -> EngineStats: ...

    @property
    def statuses(self) -> tuple[RequestStatus, ...]: ...

    @property
    def price(self) -> Any:
        """What requests take, as the kind of loop knows it."""

    @property
    def load_cancelled(self) -> bool: ...

    def heartbeat_age(self) -> float:
        """Seconds since the loop last came round; 0 while it has nothing to do."""

    def start(self) -> None:
        """Load the model; the plan's `receive` is told how it goes. The last event is one of LoadError and Closed."""

    def put(self, message: Message) -> None: ...

    def cancel_load(self) -> None: ...

    def release(self) -> None:
        """The last event came: give back what the loop ran on."""

    def abandon(self) -> bool:
        """Give the loop up, whatever it is at; whether what it held comes back all the same."""


class EngineHost(Protocol):
    """Makes runs: see LanePool and Workers."""

    def engine_run(self, plan: RunPlan) -> EngineRun: ...
