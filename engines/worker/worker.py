"""A worker process: one engine's loop on a lane, and what the daemon asks of it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import structlog

from mlxd.engines.backend import Backend, mlx_backend
from mlxd.engines.blas_preload import BlasShare
from mlxd.engines.embedding_loop import EmbeddingLoop
from mlxd.engines.errors import LoadError, LoadFailure
from mlxd.engines.lanes import LanePool
from mlxd.engines.loop import EngineLoop
from mlxd.engines.memory_share import Brake
from mlxd.engines.messages import (
    Abort,
    AbortAll,
    Add,
    Cancel,
    Close,
    Closed,
    Inbox,
    Loaded,
    LoopEvent,
    Retune,
    RoomMade,
    Trim,
    Trimmed,
)
from mlxd.engines.prefix_folder import PrefixFolder
from mlxd.engines.shards import Joining, RankLost
from mlxd.engines.step_result import StepResult
from mlxd.engines.text_loop import TextLoop
from mlxd.engines.tokenizer import Tokenizer
from mlxd.engines.types import LoadProgress, ModelInfo
from mlxd.engines.worker import to_daemon, to_worker
from mlxd.engines.worker.arrivals import inputs_request, text_request
from mlxd.engines.worker.channel import Channel
from mlxd.engines.worker.departures import Departures
from mlxd.engines.worker.error_forms import Ordered, form_of
from mlxd.engines.worker.frames import sayable
from mlxd.engines.worker.held import Held
from mlxd.engines.worker.log_lines import log_to
from mlxd.engines.worker.pulse import Pulse
from mlxd.engines.worker.tokenizer_calls import TokenizerCalls, facts_of
from mlxd.engines.worker.worker_stake import WorkerStake
from mlxd.engines.worker.worker_turns import WorkerTurns

log = structlog.stdlib.get_logger(__name__)

FAILED = 1
"""The exit code of a worker that cannot go on."""

KINDS: dict[str, type[EngineLoop[Any, Any]]] = {"text": TextLoop, "embedding": EmbeddingLoop}
"""Kinds of engines, as a Start names them."""


class Worker:
    """Built with the first message; `take` is called with every other one, on the thread that reads them."""

    def __init__(self, channel: Channel, start: to_worker.Start, backend: Callable[..., Backend] = mlx_backend) -> None:
        self._channel = channel
        self._config = start.config
        self._held = Held()
        self._calls = TokenizerCalls(channel, self._held)
        self._stake = WorkerStake(channel)
        self._turns = WorkerTurns(channel)
        ranks = 1 if start.config.shards is None else start.config.shards.here
        self._turns.watchers.add(BlasShare(lambda: self._turns.working * ranks).look)
        self._turns.others(start.others_work)
        self._departures: Departures | None = None
        self._folder = _prefix_folder(start, backend)
        self._lanes = LanePool(partial(backend, self._folder, lambda: start.ceiling))
        self._inbox: Inbox = Inbox()
        self._loop = KINDS[start.kind](
            start.config,
            self._inbox,
            self._post,
            memory=self._stake,
            step_lock=nullcontext(),
            turns=self._turns,
            crowd=self._lanes.crowd,
            images=self._lanes.images,
        )
        self._pulse = Pulse(channel, self._loop)

    def run(self) -> None:
        """Begin to load the model."""
        self._pulse.start()
        lane = self._lanes.acquire()
        lane.run(self._open)
        lane.run(self._loop.run)

    def take(self, message: Any) -> None:  # noqa: C901, PLR0912 - one branch for each message
        """Do what a message says."""
        match message:
            case to_worker.AddText() | to_worker.AddInputs():
                self._add(message)
            case to_worker.GiveUp(id, at, cancel):
                self._inbox.put(Cancel(id, at) if cancel else Abort(id, at))
            case to_worker.EndAll(order, close):
                self._inbox.put(Close(Ordered(order)) if close else AbortAll(Ordered(order)))
            case to_worker.RoomMadeFor(id):
                self._inbox.put(RoomMade(id))
            case to_worker.MemoryMayBeFree():
                self._stake.woken()
            case to_worker.TrimTo(max_bytes):
                self._inbox.put(Trim(max_bytes))
            case to_worker.RetuneTo(limits):
                self._config = self._config.with_limits(limits)
                self._inbox.put(Retune(limits))
            case to_worker.CancelLoad():
                self._loop.load_cancelled = True
            case to_worker.Reclaim(number):
                self._reclaim(number)
            case to_worker.BrakeTo(hold, slow):
                self._stake.brake = Brake(hold, slow)
            case to_worker.OthersWork(count):
                self._turns.others(count)
            case to_worker.MemoryAnswer():
                self._stake.answered(message)
            case to_worker.Call():
                self._calls.make(message)
            case to_worker.StopCall(number):
                self._calls.stop(number)
            case to_worker.Drop(held):
                self._held.drop(held)
            case to_worker.LogFrom(level):
                log_to(self._channel, level)
            case to_worker.HoldSteps(seconds):
                self._hold(seconds)
            case to_worker.FreeSteps():
                self._lanes.crowd.open()

    def _add(self, add: to_worker.AddText | to_worker.AddInputs) -> None:
        try:
            request = inputs_request(add) if isinstance(add, to_worker.AddInputs) else text_request(add, self._held)
        # Whatever is wrong with one request, the others go on.
        except Exception as error:
            log.exception("worker.request_broke")
            self._channel.send(to_daemon.Step([to_daemon.Item(add.number, error=form_of(error))]))
        else:
            self._inbox.put(Add(request, add.arrived))

    def _open(self, open_backend: Callable[[], Backend]) -> None:
        try:
            open_backend()
        # the load, which is next, meets the same fault and tells of it
        except Exception:  # noqa: BLE001
            return
        self._channel.send(to_daemon.Opened())

    def _reclaim(self, number: int) -> None:
        """On a lane of its own: the engine goes on."""
        lane = self._lanes.acquire()

        def job(open_backend: Callable[[], Backend]) -> None:
            open_backend().reclaim()
            self._pulse.beat()
            self._channel.send(to_daemon.Reclaimed(number))

        lane.run(job)
        self._lanes.release(lane)

    def _hold(self, seconds: float) -> None:
        def hold() -> None:
            self._channel.send(to_daemon.StepsHeld(self._lanes.crowd.close(seconds)))

        threading.Thread(target=hold, name="hold", daemon=True).start()

    def _post(self, event: LoopEvent) -> None:
        match event:
            case StepResult():
                assert self._departures is not None, "nothing is generated before the model is loaded"
                self._channel.send(self._departures.step(event))
            case LoadProgress(done, total):
                self._channel.send(to_daemon.Progress(done, total))
            case Loaded(info, tokenizer):
                self._loaded(info, tokenizer)
            case LoadError(reason=reason):
                self._leave(to_daemon.LoadFailed(reason, sayable(str(event))))
            case Trimmed():
                self._channel.send(to_daemon.TrimDone())
            case Joining(pids):
                self._channel.send(to_daemon.RanksJoin({sayable(title): pid for title, pid in pids.items()}))
            case RankLost(why, last):
                self._channel.send(to_daemon.Failing(sayable(why)))
                if last:
                    os._exit(FAILED)
            case Closed():
                self._leave(to_daemon.Gone())

    def _loaded(self, info: ModelInfo, tokenizer: Tokenizer) -> None:
        self._departures = Departures(tokenizer)
        self._calls.tokenizer = tokenizer
        self._pulse.note()
        try:
            facts = facts_of(tokenizer)
        # A tokenizer and its template are programs that came with the model.
        except Exception as error:
            log.exception("worker.facts_broke")
            said = f"nothing can be said of its tokenizer: {type(error).__name__}: {error}"
            self._leave(to_daemon.LoadFailed(LoadFailure.BAD_FILES, sayable(said)))
        else:
            self._channel.send(to_daemon.Ready(info, facts))

    def _leave(self, last: Any) -> None:
        """Write what is left to write, send the last message and end the process. The lane does not wait for it."""

        def leave() -> None:
            if self._folder is not None:
                self._folder.close(self._config.prefix_spill_timeout)
            self._channel.send(last)
            os._exit(0)

        threading.Thread(target=leave, name="leave").start()


def _prefix_folder(start: to_worker.Start, backend: Callable[..., Backend]) -> PrefixFolder | None:
    """A folder of this worker alone, within the model's own bound."""
    if start.prefix_folder is None or not start.config.prefix_disk_bytes:
        return None
    return PrefixFolder(start.prefix_folder, start.config.prefix_disk_bytes, backend)
