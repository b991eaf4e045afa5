#!/usr/bin/env python3
"""What a user of one stream feels of the others: gaps and times to first token, of mlxd and of mlx_lm.server.

usage: latency.py [--model smollm2|tiny|micro] [--runs 5] [--words 1450] [--only mlxd|mlx_lm.server]

gap        the longest pause of a decoding stream while a long prompt arrives, beside its pauses before
ttft       time to first token of a short prompt: alone, and while four streams decode
warm       time to first token of a long prompt: new, and the same again
reload     the same after unload and load, with the disk cache (mlxd alone)
cancel     from a client's departure, in a prompt and in an answer, until slot and memory were free (mlxd alone)
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from servers import Server, mlx_lm_server, mlxd
from smollm2 import smollm2_folder
from tiny_models import build_tiny_model, cached

TEXT = "the quick brown fox jumps over the lazy dog and runs away from the big bad wolf"
# A stream that is measured must not end, and each of its tokens must show at once: without the end tokens of the tiny
# models and of SmolLM2, and without SmolLM2's single space, which waits for the token after it.
STEADY = {"0": -100, "2": -100, "216": -100}
DISK = 'engine = { prefix_cache_disk = "4GB" }\n'


def model_path(name: str) -> Path:
    if name == "smollm2":
        return smollm2_folder()
    return cached(name, lambda out: build_tiny_model(out, size=name))


def prompt_of(words: int, salt: object) -> str:
    text = TEXT.split()
    return f"{salt}: " + " ".join(text[number % len(text)] for number in range(words))


class Client:
    """Streams answers and notes when each piece came."""

    def __init__(self, server: Server, session: aiohttp.ClientSession) -> None:
        self._server = server
        self._session = session

    async def pieces(self, text: str, max_tokens: int) -> AsyncIterator[float]:
        """The moment of each piece of text of a greedy answer, in seconds."""
        body = {
            "model": self._server.model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": max_tokens,
            "temperature": 0,
            "logit_bias": STEADY,
            "stream": True,
        }
        async with self._session.post(f"{self._server.url}/v1/chat/completions", json=body) as response:
            response.raise_for_status()
            async for line in response.content:
                if line.startswith(b"data: {") and _has_text(json.loads(line[6:])):
                    yield time.perf_counter()

    async def ttft(self, text: str, max_tokens: int = 2) -> float:
        """Seconds to the first piece; the rest is read too."""
        started = time.perf_counter()
        moments = [moment async for moment in self.pieces(text, max_tokens)]
        return moments[0] - started

    async def freed(self) -> tuple[float, float]:
        """How many cancels there were, and the seconds until their memory was free, all together."""
        async with self._session.get(f"{self._server.url}/metrics") as response:
            lines = (await response.text()).splitlines()
        values = [
            sum(
                float(line.rpartition(" ")[2])
                for line in lines
                if line.startswith(f"mlxd_cancel_to_freed_seconds_{what}")
            )
            for what in ("count", "sum")
        ]
        return values[0], values[1]

    async def admin(self, method: str, path: str) -> Any:
        async with self._session.request(method, f"{self._server.url}{path}") as response:
            response.raise_for_status()
            return await response.json()


class Stream:
    """A stream that decodes in the background."""

    def __init__(self, client: Client, salt: object, tokens: int = 4000) -> None:
        self.moments: list[float] = []
        self._started = asyncio.Event()
        self._task = asyncio.create_task(self._read(client, salt, tokens))

    async def _read(self, client: Client, salt: object, tokens: int) -> None:
        async for moment in client.pieces(f"Count, {salt}: one two three", tokens):
            self.moments.append(moment)
            if len(self.moments) >= 8:  # enough to know its pace
                self._started.set()

    async def __aenter__(self) -> Stream:
        async with asyncio.timeout(120):
            await self._started.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def gaps(self, start: float, end: float) -> list[float]:
        moments = [moment for moment in self.moments if start <= moment <= end]
        return [later - earlier for earlier, later in pairwise(moments)]


async def gap(client: Client, words: int) -> dict[str, float]:
    async with Stream(client, f"gap {time.time_ns()}") as stream:
        before = statistics.median(stream.gaps(0, time.perf_counter()))
        started = time.perf_counter()
        ttft = await client.ttft(prompt_of(words, f"gap {time.time_ns()}"))
        gaps = stream.gaps(started, time.perf_counter())
        # a stream that stood still all the time has no gaps inside it
        longest = max(gaps, default=0.0)
        longest = max(longest, time.perf_counter() - stream.moments[-1])
    return {"step_s": before, "longest_gap_s": longest, "newcomer_ttft_s": ttft}


async def short(client: Client, _: int) -> dict[str, float]:
    idle = await client.ttft(prompt_of(12, f"idle {time.time_ns()}"))
    async with AsyncExitStack() as streams:
        opened = [Stream(client, f"short {time.time_ns()}") for _ in range(4)]
        for stream in opened:
            await streams.enter_async_context(stream)
        busy = await client.ttft(prompt_of(12, f"busy {time.time_ns()}"))
    return {"idle_ttft_s": idle, "busy_ttft_s": busy, "ratio": busy / idle}


async def warm(client: Client, words: int) -> dict[str, float]:
    text = prompt_of(words, f"warm {time.time_ns()}")
    cold, again = await client.ttft(text), await client.ttft(text)
    return {"cold_ttft_s": cold, "warm_ttft_s": again, "ratio": again / cold}


async def reload(client: Client, words: int) -> dict[str, float]:
    text = prompt_of(words, f"reload {time.time_ns()}")
    cold = await client.ttft(text)
    await client.admin("POST", "/admin/models/it/unload")
    await client.admin("POST", "/admin/models/it/load")
    again = await client.ttft(text)
    return {"cold_ttft_s": cold, "reloaded_ttft_s": again, "ratio": again / cold}


async def cancel(client: Client, words: int) -> dict[str, float]:
    """Leave in the middle of a prompt, and again in the middle of an answer."""
    count, seconds = await client.freed()
    for text, wait in ((prompt_of(words, f"cancel {time.time_ns()}"), 1.0), (f"Go on, {time.time_ns()}", 2.0)):
        with suppress(TimeoutError):
            async with asyncio.timeout(wait):
                await client.ttft(text, 4000)
    await client.ttft("Hello", 2)
    count_after, seconds_after = await client.freed()
    return {"cancels": count_after - count, "freed_after_s": (seconds_after - seconds) / (count_after - count)}


async def measure(server: Server, words: int, runs: int, parts: dict[str, Callable[..., Any]]) -> None:
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(timeout=timeout, read_bufsize=2**20) as session:
        client = Client(server, session)
        await client.ttft("Hello", 4)  # loads the model
        for name, part in parts.items():
            results = [await part(client, words) for _ in range(runs)]
            medians = {key: statistics.median(one[key] for one in results) for key in results[0]}
            shown = "  ".join(f"{key} {value:.3f}" for key, value in medians.items())
            print(f"{server.name:14} {name:6} {shown}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", choices=("smollm2", "tiny", "micro"))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--words", type=int, default=1450)
    parser.add_argument("--only", choices=("mlxd", "mlx_lm.server"))
    arguments = parser.parse_args()
    path, words, runs = model_path(arguments.model), arguments.words, arguments.runs
    parts = {"gap": gap, "ttft": short, "warm": warm}
    if arguments.only != "mlx_lm.server":
        with tempfile.TemporaryDirectory() as folder, mlxd(path, Path(folder), DISK) as server:
            asyncio.run(measure(server, words, runs, {**parts, "reload": reload, "cancel": cancel}))
    if arguments.only != "mlxd":
        with mlx_lm_server(path) as server:
            asyncio.run(measure(server, words, runs, parts))


def _has_text(chunk: dict[str, Any]) -> bool:
    return any(choice.get("delta", {}).get("content") for choice in chunk["choices"])


if __name__ == "__main__":
    main()
