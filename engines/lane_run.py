"""An engine's loop on a lane of this process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from mlxd.engines.errors import LoadError, LoadFailure
from mlxd.engines.messages import Inbox, LoopEvent, Message
from mlxd.engines.outbox import Outbox
from mlxd.engines.types import EngineStats, RequestStatus

if TYPE_CHECKING:
    from mlxd.engines.engine_run import RunPlan
    from mlxd.engines.lanes import Lane, LanePool


class LaneRun:
    """See EngineRun. Made on the event loop."""

    pid = None

    def __init__(self, lanes: LanePool, plan: RunPlan) -> None:
        self._lanes = lanes
        self._lane: Lane | None = None
        self._memory = plan.memory
        self._receive = plan.receive
        self._inbox: Inbox = Inbox()
        outbox: Outbox[LoopEvent] = Outbox(asyncio.get_running_loop(), plan.receive)
        self._loop = plan.loop(
            plan.config,
            self._inbox,
            outbox.post,
            memory=plan.memory,
            step_lock=plan.step_lock,
            turns=lanes.turns,
            crowd=lanes.crowd,
            images=lanes.images,
            clock=plan.clock,
        )

    @property
    def stats(self) -> EngineStats:
        return self._loop.stats

    @property
    def statuses(self) -> tuple[RequestStatus, ...]:
        return self._loop.statuses

    @property
    def price(self) -> Any:
        return self._loop.price

    @property
    def load_cancelled(self) -> bool:
        return self._loop.load_cancelled

    def heartbeat_age(self) -> float:
        return self._loop.heartbeat_age()

    def start(self) -> None:
        try:
            self._lane = self._lanes.acquire()
        except RuntimeError as error:  # there are too many threads
            failure = LoadError(LoadFailure.INTERNAL, f"no thread could be started for it: {error}")
            asyncio.get_running_loop().call_soon(self._receive, failure)
            return
        self._lane.run(self._loop.run)

    def put(self, message: Message) -> None:
        self._inbox.put(message)

    def cancel_load(self) -> None:
        self._loop.load_cancelled = True

    def release(self) -> None:
        if self._lane is not None:
            self._lanes.release(self._lane)
            self._lane = None

    def abandon(self) -> bool:
        if self._lane is not None:
            self._lanes.abandon(self._lane)
            self._lane = None
        self._memory.forget()
        return False
