"""An engine's loop in a process of its own, as its engine sees it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import structlog

from mlxd.engines.embedding_loop import EmbeddingLoop
from mlxd.engines.engine_run import RunPlan
from mlxd.engines.errors import EngineClosed, EngineCrashed, EngineDead, LoadError, LoadFailure
from mlxd.engines.messages import Close, Closed, Loaded, LoopEvent, Message, Trimmed
from mlxd.engines.step_result import Delivery, StepResult
from mlxd.engines.tokenizer import Tokenizer
from mlxd.engines.turns import Turns
from mlxd.engines.types import EngineStats, LoadProgress, RequestStatus
from mlxd.engines.worker import to_daemon, to_worker
from mlxd.engines.worker.calls import Calls
from mlxd.engines.worker.error_forms import error_of
from mlxd.engines.worker.frames import protocol
from mlxd.engines.worker.log_relay import relay
from mlxd.engines.worker.memory_clerk import MemoryClerk
from mlxd.engines.worker.outgoing import Outgoing
from mlxd.engines.worker.process import Command, Ending, WorkerProcess, worker_command
from mlxd.engines.worker.remote_tokenizer import RemoteEncoderTokenizer, RemoteTokenizer
from mlxd.engines.worker.vigil import Vigil

log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What holds for all workers. `ceiling` gives the bytes that a process may use, `patience` the seconds for which
    one may be silent, None for ever, `measure` the bytes of a process; `command` starts one. Images cross in files of
    the folder `scratch`; each model keeps prompt prefixes in a folder of its own in `prefixes`.
    """

    scratch: Path
    prefixes: Path
    ceiling: Callable[[], int | None] = lambda: None
    patience: Callable[[], float | None] = lambda: None
    measure: Callable[[int], int] = lambda _: 0
    log_level: Callable[[], int] = lambda: logging.INFO
    command: Command = worker_command


class WorkerRun:
    """See EngineRun. Made on the event loop. It is one of `runs` while it has a process."""

    def __init__(self, plan: RunPlan, settings: WorkerSettings, turns: Turns, runs: set[WorkerRun]) -> None:
        self._plan = plan
        self._settings = settings
        self._turns = turns
        self._runs = runs
        self._loop = asyncio.get_running_loop()
        self._process: WorkerProcess | None = None
        self._outgoing = Outgoing()
        self._calls = Calls(self._send)
        self._memory = MemoryClerk(plan.memory, self._send)
        self._vigil = Vigil(settings.patience, self._silent)
        self._last: LoopEvent | None = None
        self._loaded = self._closing = self._works = False
        self._lost: str | None = None
        self._learn: Callable[[dict[int, bytes]], None] = lambda _: None
        self._age, self._age_at = 0.0, 0.0
        self._told_others = 0
        self._numbers = count(1)
        self._reclaims: dict[int, asyncio.Future[None]] = {}
        self._steps_held: asyncio.Future[bool] = self._loop.create_future()
        self._over = asyncio.Event()
        self.stats = EngineStats()
        self.statuses: tuple[RequestStatus, ...] = ()
        self.price: Any = plan.loop.price
        self.load_cancelled = False
        self.mlx_counters = (0, 0, 0)
        self.base_bytes = 0

    @property
    def name(self) -> str:
        """The model's."""
        return self._plan.config.name

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def heartbeat_age(self) -> float:
        return self._age + self._loop.time() - self._age_at if self._works else 0.0

    def start(self) -> None:
        try:
            self._process = WorkerProcess(self._take, self._output, self._ended, self._settings.command)
        except OSError as error:
            message = f"no process could be started for it: {error}"
            self._over.set()
            self._loop.call_soon(self._tell, LoadError(LoadFailure.INTERNAL, message))
            return
        self._runs.add(self)
        self._turns.watchers.add(self._others_changed)
        self._vigil.start()
        self._send(self._first_message())
        self._memory.open()

    def put(self, message: Message) -> None:
        self._closing = self._closing or isinstance(message, Close)
        self._send(self._outgoing.form(message))

    def cancel_load(self) -> None:
        self.load_cancelled = True
        self._send(to_worker.CancelLoad())

    def release(self) -> None:
        """The process is gone by then."""

    def abandon(self) -> bool:
        """Kill the process: the system has its memory back."""
        self._lost = self._lost or "it was given up"
        if self._process is not None:
            self._process.kill_with_dump()
        return True

    async def reclaim(self) -> None:
        """Have it give free buffers back to the system; nothing happens before the model is loaded."""
        if not self._loaded or self._over.is_set():
            return
        done: asyncio.Future[None] = self._loop.create_future()
        number = next(self._numbers)
        self._reclaims[number] = done
        self._send(to_worker.Reclaim(number))
        await done

    def log_from(self, level: int) -> None:
        """Have it log from this level on."""
        self._send(to_worker.LogFrom(level))

    def hold_steps(self, seconds: float) -> asyncio.Future[bool]:
        """Have it begin no step; whether the running one has ended within so many seconds."""
        self._steps_held = held = self._loop.create_future()
        if self._process is None or self._over.is_set():
            held.set_result(True)
        self._send(to_worker.HoldSteps(seconds))
        return held

    def free_steps(self) -> None:
        """The twin of `hold_steps`."""
        self._send(to_worker.FreeSteps())

    async def over(self) -> None:
        """Wait until the process is gone."""
        await self._over.wait()

    def _first_message(self) -> to_worker.Start:
        config, settings = self._plan.config, self._settings
        kind = "embedding" if issubclass(self._plan.loop, EmbeddingLoop) else "text"
        prefixes = str(settings.prefixes / quote(config.name, safe="")) if config.prefix_disk_bytes else ""
        self._told_others = self._others()
        return to_worker.Start(
            protocol(), kind, config, settings.ceiling(), prefixes, settings.log_level(), self._told_others
        )

    def _send(self, message: msgspec.Struct) -> None:
        if self._process is not None:
            self._process.send(message)

    # -- whose turn it is ---------------------------------------------------------------------------------------------

    def _others(self) -> int:
        return self._turns.working - self._works

    def _others_changed(self) -> None:
        """On any thread. Only loads and encoders step aside."""
        if not self._loop.is_closed() and (not self._loaded or self._plan.config.vision):
            self._loop.call_soon_threadsafe(self._tell_others)

    def _tell_others(self) -> None:
        others = self._others()
        if others != self._told_others:
            self._told_others = others
            self._send(to_worker.OthersWork(others))

    def _working(self, *, now: bool) -> None:
        if now == self._works:
            return
        self._works = now
        self._aged(0.0)
        (self._turns.begin if now else self._turns.end)()

    def _aged(self, age: float) -> None:
        self._age, self._age_at = age, self._loop.time()

    # -- what the worker says -----------------------------------------------------------------------------------------

    def _take(self, message: Any) -> None:  # noqa: C901, PLR0912 - one branch for each message
        self._vigil.heard()
        match message:
            case to_daemon.Step():
                self._aged(0.0)
                self._tell(self._step(message))
            case to_daemon.Note(stats, statuses, prompt_price, encoder_price):
                self.stats, self.statuses = stats, tuple(statuses)
                self.price = prompt_price or encoder_price or self.price
            case to_daemon.Beat(age, active, cache, peak):
                self._aged(age)
                self.mlx_counters = (active, cache, peak)
            case to_daemon.Working(now):
                self._working(now=now)
            case to_daemon.MemoryCall() | to_daemon.MemorySet() | to_daemon.WakeMe():
                self._memory.take(message)
            case to_daemon.Reply():
                self._calls.answered(message)
            case to_daemon.Progress(done, total):
                self._tell(LoadProgress(done, total))
            case to_daemon.Ready(info, facts):
                self._loaded = True
                self._tell(Loaded(info, self._tokenizer(facts)))
            case to_daemon.TrimDone():
                self._tell(Trimmed())
            case to_daemon.LoadFailed(reason, text):
                self._last = LoadError(LoadFailure(reason), text)
            case to_daemon.Gone():
                self._last = Closed()
            case to_daemon.Reclaimed(number):
                self._reclaimed(number)
            case to_daemon.LogLine():
                relay(message, self.name)
            case to_daemon.Hello(theirs) if theirs != protocol():
                self._last = LoadError(LoadFailure.INTERNAL, "mlxd was changed while it ran: restart the daemon")
                self._kill()
            case to_daemon.StepsHeld(ended):
                self._answer_held(ended=ended)
            case to_daemon.Opened():
                self.base_bytes = self._settings.measure(self.pid or 0)

    def _tell(self, event: LoopEvent) -> None:
        self._plan.receive(event)

    def _tokenizer(self, facts: to_daemon.TokenizerFacts) -> Tokenizer:
        if facts.encodes_inputs:
            return RemoteEncoderTokenizer(self._calls)
        tokenizer = RemoteTokenizer(self._calls, facts, self._settings.scratch)
        self._learn = tokenizer.learn
        return tokenizer

    def _step(self, step: to_daemon.Step) -> StepResult:
        deliveries = [delivery for item in step.items for delivery in self._delivery(item)]
        dead = None if step.dead is None else error_of(step.dead, self._outgoing.orders)
        assert dead is None or isinstance(dead, EngineDead), "an engine ends with nothing else"
        return StepResult(deliveries, step.eviction, dead, step.freed)

    def _delivery(self, item: to_daemon.Item) -> Iterator[Delivery]:
        request = self._outgoing.request(item.number)
        self._learn(item.texts)
        if request is None:  # its reader left meanwhile
            return
        if item.error is not None:
            self._outgoing.over(item.number)
            yield request, error_of(item.error, self._outgoing.orders)
        elif item.vectors is not None:
            self._outgoing.over(item.number)
            yield request, item.vectors
        elif item.output is not None:
            if item.output.finish_reason is not None:
                self._outgoing.over(item.number)
            yield request, item.output

    def _answer_held(self, *, ended: bool) -> None:
        if not self._steps_held.done():
            self._steps_held.set_result(ended)

    def _reclaimed(self, number: int) -> None:
        done = self._reclaims.pop(number, None)
        if done is not None and not done.done():
            done.set_result(None)

    def _output(self, line: str) -> None:
        log.warning("worker.output", model=self.name, pid=self.pid, line=line)

    # -- how it ends --------------------------------------------------------------------------------------------------

    def _silent(self, seconds: float) -> None:
        log.error("worker.silent", model=self.name, pid=self.pid, seconds=round(seconds, 1))
        self._lost = f"it said nothing for {seconds:.0f} s, so it was killed"
        if self._process is not None:
            self._process.kill_with_dump()

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def _ended(self, ending: Ending) -> None:
        """The process is gone, and everything that it said was heard."""
        age = self.heartbeat_age()
        self._vigil.stop()
        self._turns.watchers.discard(self._others_changed)
        self._working(now=False)
        self._memory.close()
        self.stats, self.statuses, self.mlx_counters, self.base_bytes = EngineStats(), (), (0, 0, 0), 0
        self._answer_held(ended=True)
        for number in list(self._reclaims):
            self._reclaimed(number)
        crash = self._crash(ending, age)
        self._calls.end(crash if self._last is None else EngineClosed(f"model {self.name} was unloaded"))
        self._over.set()
        self._runs.discard(self)
        self._tell_end(crash)

    def _tell_end(self, crash: EngineCrashed) -> None:
        if isinstance(self._last, LoadError) or (self._last is not None and self._loaded):
            self._tell(self._last)
            return
        told = {name: fact for name, fact in crash.facts.items() if name != "output"}
        log.error("worker.died", model=self.name, message=str(crash), **told)
        if not self._loaded:
            failure = LoadError(LoadFailure.CRASHED, str(crash))
            failure.__cause__ = crash
            self._tell(failure)
            return
        if not self._closing:
            self._tell(StepResult(dead=crash))
        self._tell(Closed())

    def _crash(self, ending: Ending, age: float) -> EngineCrashed:
        process = self._process
        why = self._lost or (process.broken if process is not None else None) or f"its process {ending.words}"
        phase = "at work" if self._loaded else "loading"
        facts: dict[str, object] = {
            "pid": self.pid,
            "exit_code": ending.code if ending.code >= 0 else None,
            "signal": ending.signal,
            "phase": phase,
            "step_age_s": round(age, 3),
            "output": list(ending.output),
        }
        return EngineCrashed(f"the worker of {self.name} is gone: {why}", facts=facts)
