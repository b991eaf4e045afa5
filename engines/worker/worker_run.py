"""An engine's loop in a process of its own, as its engine sees it."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import structlog

from mlxd.engines.embedding_loop import EmbeddingLoop
from mlxd.engines.engine_run import RunPlan
from mlxd.engines.errors import EngineClosed, EngineCrashed, LoadError, LoadFailure
from mlxd.engines.messages import Close, Closed, Loaded, Message, Trimmed
from mlxd.engines.step_result import StepResult
from mlxd.engines.tokenizer import Tokenizer
from mlxd.engines.turns import Turns
from mlxd.engines.types import EngineStats, LoadProgress, RequestStatus
from mlxd.engines.worker import to_daemon, to_worker
from mlxd.engines.worker.calls import Calls
from mlxd.engines.worker.errands import Errands
from mlxd.engines.worker.incoming import Incoming
from mlxd.engines.worker.join_watch import JoinWatch
from mlxd.engines.worker.log_relay import LogRelay
from mlxd.engines.worker.memory_clerk import MemoryClerk
from mlxd.engines.worker.outgoing import Outgoing
from mlxd.engines.worker.output import Output
from mlxd.engines.worker.process import Ending, WorkerProcess
from mlxd.engines.worker.remote_tokenizer import RemoteEncoderTokenizer, RemoteTokenizer
from mlxd.engines.worker.turn_clerk import TurnClerk
from mlxd.engines.worker.vigil import Vigil
from mlxd.engines.worker.worker_settings import WorkerSettings

log = structlog.stdlib.get_logger(__name__)

# Signals by which rank 0 may die when another rank is gone, before it could say so: MLX's ring clears lists that others
# write to.
BROKEN_RING = ("SIGSEGV", "SIGABRT", "SIGBUS")


class WorkerRun:
    """See EngineRun. Made on the event loop. It is one of `runs` while it has a process."""

    def __init__(self, plan: RunPlan, settings: WorkerSettings, turns: Turns, runs: set[WorkerRun]) -> None:
        self._plan = plan
        self._settings = settings
        self._runs = runs
        self._loop = asyncio.get_running_loop()
        self._process: WorkerProcess | None = None
        # what it is told before it has a process, in order
        self._early: list[msgspec.Struct] = []
        self._outgoing = Outgoing()
        self._incoming = Incoming(self._outgoing)
        self._calls = Calls(self._send)
        self._errands = Errands(self._send)
        self._memory = MemoryClerk(plan.memory, self._send)
        # only loads and encoders step aside
        self._turn = TurnClerk(turns, self._send)
        self._vigil = Vigil(settings.patience, self._silent)
        self._joining = JoinWatch(settings.has_ended, self._rank_ended)
        self._relay = LogRelay(self.name, lambda: self.pid)
        self._last: LoadError | Closed | None = None
        self._loaded = self._closing = False
        self._lost: str | None = None
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
        return self._turn.heartbeat_age()

    def start(self) -> None:
        output = Output(self._relay.output, self._relay.left_out)
        try:
            self._process = WorkerProcess(self._take, output, self._ended, self._settings.command)
        except OSError as error:
            message = f"no process could be started for it: {error}"
            self._over.set()
            self._loop.call_soon(self._plan.receive, LoadError(LoadFailure.INTERNAL, message))
            return
        self._runs.add(self)
        self._vigil.start()
        self._send(self._first_message())
        self._memory.open()
        for early in self._early:
            self._send(early)
        self._early.clear()

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
        if self._loaded and not self._over.is_set():
            await self._errands.reclaim()

    def log_from(self, level: int) -> None:
        """Have it log from this level on."""
        self._send(to_worker.LogFrom(level))

    def hold_steps(self, seconds: float) -> asyncio.Future[bool]:
        """Have it begin no step; whether the running one has ended within so many seconds."""
        return self._errands.hold_steps(seconds)

    def free_steps(self) -> None:
        """The twin of `hold_steps`."""
        self._send(to_worker.FreeSteps())

    async def over(self) -> None:
        """Wait until the process is gone."""
        await self._over.wait()

    def _first_message(self) -> to_worker.Start:
        config, settings = self._plan.config, self._settings
        kind = "embedding" if issubclass(self._plan.loop, EmbeddingLoop) else "text"
        prefixes = settings.prefix_folder(config.name) if config.prefix_disk_bytes else None
        return to_worker.Start(kind, config, settings.ceiling(), prefixes, settings.log_level(), self._turn.open())

    def _send(self, message: msgspec.Struct) -> None:
        if self._process is not None:
            self._process.send(message)
        elif not self._over.is_set():
            self._early.append(message)

    # -- what the worker says -----------------------------------------------------------------------------------------

    def _take(self, message: Any) -> None:  # noqa: C901, PLR0912 - one branch for each message
        self._vigil.heard()
        match message:
            case to_daemon.Step():
                self._turn.aged(0.0)
                self._plan.receive(self._incoming.result(message))
            case to_daemon.Note(stats, statuses, prompt_price, encoder_price):
                self.stats, self.statuses = stats, tuple(statuses)
                self.price = prompt_price or encoder_price or self.price
            case to_daemon.Beat(age, active, cache, peak):
                self._turn.aged(age)
                self._relay.report()
                self.mlx_counters = (active, cache, peak)
            case to_daemon.Working(now):
                self._turn.working(now=now)
            case to_daemon.MemoryCall() | to_daemon.MemorySet() | to_daemon.WakeMe():
                self._memory.take(message)
            case to_daemon.Reply():
                self._calls.answered(message)
            case to_daemon.Progress(done, total):
                self._plan.receive(LoadProgress(done, total))
            case to_daemon.Ready(info, facts):
                self._loaded = True
                self._plan.receive(Loaded(info, self._tokenizer(facts)))
            case to_daemon.TrimDone():
                self._plan.receive(Trimmed())
            case to_daemon.LoadFailed(reason, text):
                self._last = LoadError(LoadFailure(reason), text)
            case to_daemon.Gone():
                self._last = Closed()
            case to_daemon.Reclaimed() | to_daemon.StepsHeld():
                self._errands.done(message)
            case to_daemon.LogLine():
                self._relay.line(message)
            case to_daemon.Hello(theirs) if theirs != self._settings.protocol:
                self._last = LoadError(LoadFailure.INTERNAL, "mlxd was changed while it ran: restart the daemon")
                self._kill()
            case to_daemon.RanksJoin(pids):
                self._joining.watch(pids)
            case to_daemon.Failing(why):
                self._lost = why
            case to_daemon.Opened():
                self.base_bytes = self._settings.measure(self.pid or 0)

    def _tokenizer(self, facts: to_daemon.TokenizerFacts) -> Tokenizer:
        if facts.encodes_inputs:
            return RemoteEncoderTokenizer(self._calls)
        tokenizer = RemoteTokenizer(self._calls, facts, self._settings.scratch)
        self._incoming.learn = tokenizer.learn
        return tokenizer

    # -- how it ends --------------------------------------------------------------------------------------------------

    def _silent(self, seconds: float) -> None:
        log.error("worker.silent", model=self.name, pid=self.pid, seconds=round(seconds, 1))
        what = "its ranks did not join each other" if self._joining.watches else "it said nothing"
        self._lost = f"{what} for {seconds:.0f} s, so it was killed"
        if self._process is not None:
            self._process.kill_with_dump()

    def _rank_ended(self, title: str) -> None:
        self._lost = self._lost or f"{title} is gone: it ended while all ranks joined each other"
        self._kill()

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def _ended(self, ending: Ending) -> None:
        """The process is gone, and everything that it said was heard."""
        crash = self._crash(ending)
        self._vigil.stop()
        self._joining.stop()
        self._turn.close()
        self._memory.close()
        self._relay.close()
        self._errands.end()
        self._calls.end(crash if self._last is None else EngineClosed(f"model {self.name} was unloaded"))
        self._over.set()
        self._runs.discard(self)
        self._tell_end(crash)
        self.stats, self.statuses, self.mlx_counters, self.base_bytes = EngineStats(), (), (0, 0, 0), 0

    def _tell_end(self, crash: EngineCrashed) -> None:
        if isinstance(self._last, LoadError) or (self._last is not None and self._loaded):
            self._plan.receive(self._last)
            return
        told = {name: fact for name, fact in crash.facts.items() if name != "output"}
        log.error("worker.died", model=self.name, message=str(crash), **told)
        if not self._loaded:
            failure = LoadError(LoadFailure.CRASHED, str(crash))
            failure.__cause__ = crash
            self._plan.receive(failure)
            return
        if not self._closing:
            self._plan.receive(StepResult(dead=crash))
        self._plan.receive(Closed())

    def _crash(self, ending: Ending) -> EngineCrashed:
        broken = None if self._process is None else self._process.broken
        why = self._lost or broken or self._how(ending)
        facts: dict[str, object] = {
            "pid": self.pid,
            "exit_code": ending.exit_code,
            "signal": ending.signal,
            "phase": "at work" if self._loaded else "loading",
            "step_age_s": round(self.heartbeat_age(), 3),
            "output": list(ending.output),
        }
        return EngineCrashed(f"the worker of {self.name} is gone: {why}", facts=facts)

    def _how(self, ending: Ending) -> str:
        how = f"its process {ending.words}"
        if self._plan.config.shards is not None and ending.signal in BROKEN_RING:
            return f"{how}, as MLX may be when another rank is gone"
        return how
