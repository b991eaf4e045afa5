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
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from servers import Server, mlx_lm_server, mlxd
from smollm2 import smollm2_folder
from streams import Client, Stream, medians, show
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


async def gap(client: Client, words: int) -> dict[str, float]:
    async with Stream(client, [client.counting(f"gap {time.time_ns()}")]) as stream:
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
        opened = [Stream(client, [client.counting(f"short {time.time_ns()}")]) for _ in range(4)]
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
    await client.call("POST", "/admin/models/it/unload")
    await client.call("POST", "/admin/models/it/load")
    again = await client.ttft(text)
    return {"cold_ttft_s": cold, "reloaded_ttft_s": again, "ratio": again / cold}


async def cancel(client: Client, words: int) -> dict[str, float]:
    """Leave in the middle of a prompt, and again in the middle of an answer."""
    count, seconds = await freed(client)
    for text, wait in ((prompt_of(words, f"cancel {time.time_ns()}"), 1.0), (f"Go on, {time.time_ns()}", 2.0)):
        with suppress(TimeoutError):
            async with asyncio.timeout(wait):
                await client.ttft(text, 4000)
    await client.ttft("Hello", 2)
    count_after, seconds_after = await freed(client)
    return {"cancels": count_after - count, "freed_after_s": (seconds_after - seconds) / (count_after - count)}


async def freed(client: Client) -> tuple[float, float]:
    """How many cancels there were, and the seconds until their memory was free, all together."""
    lines = (await client.call("GET", "/metrics")).splitlines()
    values = [
        sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"mlxd_cancel_to_freed_seconds_{what}"))
        for what in ("count", "sum")
    ]
    return values[0], values[1]


async def measure(server: Server, words: int, runs: int, parts: dict[str, Callable[..., Any]]) -> None:
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(timeout=timeout, read_bufsize=2**20) as session:
        client = Client(server, session, STEADY)
        await client.ttft("Hello", 4)  # loads the model
        for name, part in parts.items():
            show(server.name, name, (await medians({name: partial(part, client, words)}, runs))[name])


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


if __name__ == "__main__":
    main()
