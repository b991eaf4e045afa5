"""Those who meddle in a soak: operators, killers, reloads, and readers who must never wait."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from dataclasses import dataclass, field
from random import Random
from typing import Any

import psutil
from daemon_process import Api, Daemon
from soak_daemon import NAMES, Variant
from soak_tally import Tally, Wrong, code_of

# Seconds that a call which only reads may take on a machine whose cores are all busy.
READ = 10.0
READS = (
    *("/metrics", "/health", "/health/ready", "/v1/models", "/openapi.json"),
    *("/admin/models", "/admin/requests", "/admin/memory", "/admin/decisions", "/admin/config"),
    *(f"/admin/{what}/{name}" for what in ("models", "explain") for name in NAMES),
)
# Seconds that a worker is stopped for at most when it is to go on: well within its bound.
PAUSE = 1.5


@dataclass
class Operator:
    """Loads, unloads, pins and aborts as its dice choose."""

    api: Api
    dice: Random
    tally: Tally

    async def act(self) -> None:
        model = f"/admin/models/{self.dice.choice(NAMES)}"
        match self.dice.choice(["load"] * 5 + ["unload"] * 3 + ["force", "cancel", "pin", "ttl", "all", "abort"]):
            case "load":
                await self._do("load", "POST", f"{model}/load", {"wait": self.dice.random() < 0.5})
            case "unload":
                body = {"mode": "drain", "timeout": self.dice.choice(["0s", "1s", "8s"])}
                await self._do("unload", "POST", f"{model}/unload", body)
            case "force":
                await self._do("force", "POST", f"{model}/unload", {"mode": "force"})
            case "cancel":
                await self._do("cancel load", "DELETE", f"{model}/load", None, "load_not_running")
            case "pin":
                await self._do("pin", "POST", f"{model}/load", {"pin": True})
                await asyncio.sleep(self.dice.random() * 2)
                await self._do("unpin", "PATCH", model, {"pinned": False})
            case "ttl":
                await self._do("ttl", "PATCH", model, {"ttl": self.dice.choice(["1s", "never"])})
            case "all":
                await self._do("unload all", "POST", "/admin/unload", None)
            case "abort":
                await self._do("abort", "POST", "/admin/abort", None)

    async def _do(self, kind: str, method: str, path: str, body: Any, *allowed: str) -> None:
        async def call() -> str:
            status, answer = await self.api.call(method, path, body)
            return str(status) if status in (200, 202) else code_of(status, answer, *allowed)

        await self.tally.take(kind, call())


@dataclass
class Reader:
    """Reads one page after the other."""

    api: Api
    dice: Random
    tally: Tally

    async def act(self) -> None:
        path = self.dice.choice(READS)

        async def read() -> str:
            async with self.api.get_stream(path) as response:
                text = await response.text()
                if response.status != 200 and not (path == "/health/ready" and response.status == 503):
                    raise Wrong(f"{path}: {response.status} {text}")
                return str(response.status)

        await self.tally.take("read", read(), READ)


@dataclass
class Reloads:
    """Changes the configuration, and has it read by a call or by a signal; now and then it is not valid."""

    api: Api
    dice: Random
    tally: Tally
    running: Daemon
    base: int

    async def act(self) -> None:
        text, valid = Variant.drawn(self.dice).text(self.base), self.dice.random() < 0.9
        write_config(self.running, text if valid else text + "[server]\n")
        if self.dice.random() < 0.3:
            self.running.process.send_signal(signal.SIGHUP)
            self.tally.note("reload by signal", "sent" if valid else "sent, not valid")
        else:
            await self.tally.take("reload", self._call(valid))

    async def _call(self, valid: bool) -> str:
        status, answer = await self.api.call("POST", "/admin/reload", {"dry_run": self.dice.random() < 0.2})
        if (status == 200) is not valid:
            raise Wrong(f"valid: {valid}, {status} {answer}")
        return "ok" if valid else code_of(status, answer, "invalid_request")


@dataclass
class Killer:
    """Signals workers; `signalled` has what each process got, or another rank of its model, by its id. `seen` are all
    that there were.
    """

    dice: Random
    tally: Tally
    pid: int
    signalled: dict[int, set[str]] = field(default_factory=dict)
    seen: set[psutil.Process] = field(default_factory=set)

    async def act(self) -> None:
        if not (victims := workers(self.pid)):
            return
        self.seen.update(victims)
        victim = self.dice.choice(victims)
        how = self.dice.choice(["SIGKILL", "SIGKILL", "SIGSEGV", "SIGSTOP", "pause"])
        self.tally.note("kill", how)
        self.signal(victim, how)
        if how == "pause":
            await asyncio.sleep(self.dice.random() * PAUSE)
            send(victim, "SIGCONT")

    def signal(self, victim: psutil.Process, how: str) -> None:
        """Signal a process, and keep that in mind."""
        with contextlib.suppress(psutil.NoSuchProcess):
            # rank 0, or the daemon
            self.signalled.setdefault(victim.ppid(), set()).add(how)
        self.signalled.setdefault(victim.pid, set()).add(how)
        send(victim, "SIGSTOP" if how == "pause" else how)


def workers(pid: int) -> list[psutil.Process]:
    """The processes of models that a daemon has now, the dead that it has not waited for among them."""
    return psutil.Process(pid).children(recursive=True)


def send(process: psutil.Process, name: str) -> None:
    """Signal a process, if it is still there."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(signal.Signals[name])


def write_config(running: Daemon, text: str) -> None:
    """What the next reload reads."""
    file = running.folder / "mlxd.toml"
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)
