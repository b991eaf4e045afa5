"""What tests of a real daemon's memory share: models that are dear to answer with, readings, and outcomes."""

from __future__ import annotations

import asyncio
import re
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from daemon_process import Api, Daemon, daemon, sse
from tiny_models import build_tiny_model, cached

from mlxd.memory.process_tree import listed_descendants

MB = 1_000_000
# 32 KV heads of 128 in float32: 32.8 kB of cache for each token, 4.5 MB of weights
WIDE = {"num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128}
# What an overloaded daemon may answer instead of a text.
EXCESS = {"memory_ceiling", "queue_full", "model_wait_timeout"}
SERVED = "served"
_ANONYMOUS = re.compile(r"^Rss(?:Anon|Shmem):\s+(\d+) kB$", re.MULTILINE)
_SAMPLE_S = 0.005


def wide_model(seed: int = 0) -> Path:
    """A model whose cache soon is bigger than itself."""
    return cached(f"wide-{seed}", partial(build_tiny_model, size="micro", seed=seed, **WIDE))


def big_model() -> Path:
    """159 MB of weights that cost next to nothing to use."""
    return cached("big", partial(build_tiny_model, size="mid", num_hidden_layers=4))


def anonymous_bytes(pid: int) -> int:
    """What the kernel counts of a process and its children and cannot drop."""
    return sum(map(_anonymous_bytes, (pid, *listed_descendants(pid))))


def _anonymous_bytes(pid: int) -> int:
    try:
        return 1024 * sum(map(int, _ANONYMOUS.findall(Path(f"/proc/{pid}/status").read_text())))
    except (FileNotFoundError, ProcessLookupError):  # it ended
        return 0


class Watched:
    """The most anonymous memory that a process and its children had while it was watched, in bytes."""

    def __init__(self, pid: int) -> None:
        self.peak = 0
        self.samples = 0
        self._pid = pid
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Watched:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def over(self, limit: int) -> float:
        """How far the peak was above a limit, as a share of it; negative below."""
        return self.peak / limit - 1

    def _sample(self) -> None:
        while not self._stop.wait(_SAMPLE_S):
            self.peak = max(self.peak, anonymous_bytes(self._pid))
            self.samples += 1


async def resting_bytes(folder: Path, models: Path, names: Iterable[str]) -> int:
    """The footprint of a daemon of its own that has these models in memory and does nothing."""
    with daemon(folder, models) as running:
        async with Api(running.url) as api:
            for name in names:
                await api.text(name, max_tokens=1)
            memory = await api.get("/admin/memory")
            return max(memory["footprint_bytes"], anonymous_bytes(running.process.pid))


async def leave_room(running: Daemon, api: Api, nbytes: int, limits: str) -> None:
    """From now on these `limits`, lines of [memory], hold; `{}` in them is what is used at present and `nbytes` more.

    At a start they would hold for the loads too, which are planned with more than they turn out to need.
    """
    used = max((await api.get("/admin/memory"))["footprint_bytes"], anonymous_bytes(running.process.pid))
    (running.folder / "mlxd.toml").write_text(f"[memory]\n{limits.format(used + nbytes)}")
    status, answer = await api.call("POST", "/admin/reload", {})
    assert status == 200, answer


async def outcome(api: Api, model: str, text: str, tokens: int) -> str:
    """What became of a streamed request for so many tokens: served in full, or the code of its error."""
    options: dict[str, Any] = {"ignore_eos": True, "stream_options": {"include_usage": True}}
    async with api.stream(model, text, max_tokens=tokens, **options) as response:
        if response.status != 200:
            return str((await response.json())["error"]["code"])
        events = await sse(response)
    if events[-1] != "[DONE]":
        return str(events[-1]["error"]["code"])
    assert events[-2]["usage"]["completion_tokens"] == tokens, events[-2]
    return SERVED


async def outcomes(url: str, wanted: list[tuple[str, str, int]]) -> Counter[str]:
    """How often each outcome was seen, of requests (model, text, tokens) that all came at once."""
    async with Api(url) as api:
        return Counter(await asyncio.gather(*[outcome(api, *one) for one in wanted]))


async def metrics(api: Api) -> Mapping[str, float]:
    """All figures of the daemon by their name and labels, as Prometheus writes them."""
    async with api.get_stream("/metrics") as response:
        lines = (await response.text()).splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}


async def kinds(api: Api, *wanted: str) -> list[tuple[str, str | None, str]]:
    """The decisions of these kinds, oldest first: kind, model and reason."""
    decisions = (await api.get("/admin/decisions?limit=1000"))["data"]
    return [(one["kind"], one["model"], one["reason"]) for one in decisions if one["kind"] in wanted]


def rungs(running: Daemon) -> list[str]:
    """The rungs that were taken, in the order of the log."""
    return [event["rung"] for event in running.events() if event["event"] == "memory.rung"]
