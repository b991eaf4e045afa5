"""What a daemon holds during a soak and between its rounds, when nothing runs and no model is in memory."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path
from typing import Any

import psutil
from daemon_process import Api, Daemon
from prometheus_client.parser import text_string_to_metric_families
from soak_daemon import DISK, NAMES
from soak_operators import workers
from soak_tally import Tally

from mlxd.memory.probe import has_ended

# Seconds for what ends behind the last request: killed processes, connections.
SETTLE = 20.0
# Growth that is none, from the first third of the looks to the last: files, threads and tasks that come and go by
# themselves, and in bytes what is kept on purpose and may not be full yet (4 MiB of events, a thousand decisions with a
# few kB each) and what the allocators keep of the largest round so far.
MORE = {"files": 4, "threads": 4, "tasks": 3, "rss": 16_000_000, "footprint": 16_000_000}
# The lock, the breadcrumbs and their next version, the stacks of a crash and five dumps.
STATE_FILES = 10
# Events of the level `error` that a soak brings about on purpose.
MEANT = {"memory.ceiling", "daemon.reload_refused"}


@dataclass(frozen=True)
class Look:
    """What the daemon has; `rss` is its own, `footprint` what it counts."""

    files: int
    threads: int
    tasks: int
    rss: int
    footprint: int
    children: int = 0
    zombies: int = 0


async def look(api: Api, pid: int) -> Look:
    """Measure now."""
    process = psutil.Process(pid)
    children = workers(pid)
    states = [state_of(child) for child in children]
    return Look(
        process.num_fds(),
        process.num_threads(),
        int((await metrics(api))["mlxd_tasks"]),
        process.memory_info().rss,
        (await api.get("/admin/memory"))["footprint_bytes"],
        len(children),
        states.count(psutil.STATUS_ZOMBIE),
    )


def state_of(process: psutil.Process) -> str:
    try:
        return str(process.status())
    except psutil.NoSuchProcess:
        return "gone"


async def metrics(api: Api) -> dict[str, float]:
    """The samples without labels, and the sums of those with."""
    async with api.get_stream("/metrics") as response:
        text = await response.text()
    sums: Counter[str] = Counter()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            sums[sample.name] += sample.value
    return dict(sums)


async def at_rest(running: Daemon, tally: Tally, seen: set[psutil.Process]) -> Look:
    """Unload everything, and hold the books to nothing; what the daemon has then. Of the processes that were `seen`
    none runs.
    """
    pid = running.process.pid
    async with Api(running.url) as api:
        await api.until("/admin/requests", lambda answer: answer["data"] == [], SETTLE)
        for name in NAMES:
            await api.call("PATCH", f"/admin/models/{name}", {"pinned": False, "ttl": None})
            await api.call("POST", f"/admin/models/{name}/unload", {"mode": "force"})
        await _until(lambda: not workers(pid), f"processes of models are left: {workers(pid)}", tally)
        await _until(lambda: not running_of(seen), f"ranks of models are left: {running_of(seen)}", tally)
        for model in (await api.get("/admin/models"))["data"]:
            held = {key: model[key] for key in ("leases", "queued", "resident_bytes", "pid", "load", "engine")}
            if model["state"] not in ("unloaded", "failed") or any(held.values()):
                tally.fault(f"at rest {model['id']} is {model['state']} with {held}")
        check_state_dir(running.folder / "state", tally)
        if promised := (await metrics(api))["mlxd_memory_promised_bytes"]:
            tally.fault(f"{promised} bytes are promised to nobody")
        await asyncio.sleep(1)  # measured every half second
        return await look(api, pid)


def running_of(seen: set[psutil.Process]) -> list[psutil.Process]:
    """Those that run; the machine's first process may be slow to collect a dead one."""
    return [one for one in seen if one.is_running() and not has_ended(one.pid)]


def check_state_dir(state: Path, tally: Tally) -> None:
    """What crosses to workers is gone, what is kept of prompts within its bound, and of the rest there is little."""
    files = [path for path in state.rglob("*") if path.is_file()]
    crossed, prefixes, others = [], [], []
    for file in files:
        place = file.relative_to(state).parts[0]
        {"scratch": crossed, "prefixes": prefixes, "worker-prefixes": prefixes}.get(place, others).append(file)
    if crossed:
        tally.fault(f"files that crossed to workers are left: {crossed}")
    if (kept := sum(file.stat().st_size for file in prefixes)) > len(NAMES) * DISK:
        tally.fault(f"{kept} bytes of prefixes in {len(prefixes)} files")
    if len(others) > STATE_FILES:
        tally.fault(f"the state directory fills up: {others}")


async def _until(holds: Callable[[], bool], text: str, tally: Tally) -> None:
    end = time.monotonic() + SETTLE
    while not holds():
        if time.monotonic() > end:
            tally.fault(text)
            return
        await asyncio.sleep(0.1)


def growth(looks: list[Look]) -> list[str]:
    """What grew from the first third of the looks to the last, by their medians."""
    third = max(1, len(looks) // 3)
    first, last = (
        {name: statistics.median(getattr(one, name) for one in part) for name in MORE}
        for part in (looks[:third], looks[-third:])
    )
    grown = (name for name, more in MORE.items() if last[name] > first[name] + more)
    return [f"{name} grew from {first[name]} to {last[name]}" for name in grown]


@dataclass
class Audit:
    """Reads the log. `signalled` has the signals that processes got, by their ids, `seen` the processes. `counts` is
    how often each event was logged, `bad` the lines that should not be there: bugs, and ends that nobody brought about.
    """

    signalled: dict[int, set[str]] = field(default_factory=dict)
    seen: set[psutil.Process] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)
    bad: list[str] = field(default_factory=list)

    def read(self, log: Path) -> None:
        abandoned: dict[str, str] = {}
        with log.open() as lines:
            for line in lines:
                event = json.loads(line)
                self.counts[" ".join([event["event"], event.get("kind", "")]).strip()] += 1
                if event["event"] == "engine.close_timeout":
                    abandoned[event["model"]] = line
                elif self._is_bad(event):
                    self.bad.append(line)
                elif event["event"] == "worker.died" and "SIGSTOP" in self.signalled[event["pid"]]:
                    abandoned.pop(event["model"], None)
        self.bad += abandoned.values()

    def _is_bad(self, event: dict[str, Any]) -> bool:
        signals = self.signalled.get(event.get("pid", 0), set())
        match event["event"]:
            case "worker.died":
                return not signals
            case "worker.silent":
                return "SIGSTOP" not in signals
        return "exception" in event or (event["level"] == "error" and event["event"] not in MEANT)


def table(tally: Tally, looks: list[Look], counts: Counter[str], head: str) -> str:
    """The report."""
    lines = [head, "", f"{'act':<20} {'outcome':<38} {'count':>7}  slowest"]
    for (kind, outcome), number in sorted(tally.counts.items()):
        lines.append(f"{kind:<20} {outcome:<38} {number:>7}  {tally.slowest[kind]:.1f} s")
    lines += ["", "at rest " + " ".join(f"{one.name:>12}" for one in fields(Look))]
    lines += ["        " + " ".join(f"{value:>12}" for value in astuple(one)) for one in looks]
    lines += ["", *(f"{number:>7} {event}" for event, number in sorted(counts.items()))]
    lines += ["", *(f"fault at {fault}" for fault in tally.faults)]
    return "\n".join(lines) + "\n"


def peak(looks: list[Look]) -> dict[str, int]:
    """The largest of each."""
    return {one.name: max((getattr(each, one.name) for each in looks), default=0) for one in fields(Look)}
