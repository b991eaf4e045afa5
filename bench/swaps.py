#!/usr/bin/env python3
"""What loads cost those who wait for them, and those who do not.

usage: swaps.py [--runs 5] [--layers 24]

beside     latency of a short answer of a ready model: alone, and while a model of some GB loads
swap       time to first token of a model that takes the place of another: mlxd, mlx_lm.server, and the load alone
together   two models of some GB loaded one after the other, and both at once (residency.max_loading)
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from servers import mlx_lm_server, mlxd
from smollm2 import smollm2_folder
from tiny_models import build_tiny_model

# About 150 MB a layer in float32.
WIDE = {"hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}


class Client:
    """Short greedy answers of one server, and mlxd's admin calls."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self._url = url
        self._session = session

    async def answer(self, model: str, max_tokens: int = 8) -> float:
        """Seconds that an answer takes."""
        body = {
            "model": model,
            "messages": [{"role": "user", "content": "Count to ten."}],
            "max_tokens": max_tokens,
            "temperature": 0,
        }
        started = time.perf_counter()
        async with self._session.post(f"{self._url}/v1/chat/completions", json=body) as response:
            response.raise_for_status()
            await response.read()
        return time.perf_counter() - started

    async def admin(self, path: str) -> float:
        """Seconds that a POST takes."""
        started = time.perf_counter()
        async with self._session.post(f"{self._url}/admin/{path}") as response:
            response.raise_for_status()
            await response.read()
        return time.perf_counter() - started


def entries(**models: Path) -> str:
    return "".join(f'[[model]]\nname = "{name}"\npath = "{path}"\n' for name, path in models.items())


async def beside(client: Client, runs: int) -> None:
    await client.answer("it")
    quiet, loading, seconds = [], [], []
    for _ in range(runs):
        quiet += [await client.answer("it") for _ in range(10)]
        load = asyncio.create_task(client.admin("models/big/load"))
        while not load.done():
            loading.append(await client.answer("it"))
        seconds.append(await load)
        await client.admin("models/big/unload")
    alone, with_load = statistics.median(quiet), statistics.median(loading)
    print(
        f"beside     load {statistics.median(seconds):.2f} s; answer {alone:.3f} s alone, {with_load:.3f} s beside it "
        f"({len(loading)} answers, longest {max(loading):.3f} s): {with_load / alone:.2f} times"
    )


async def swaps(answer: Callable[[str], Awaitable[float]], names: tuple[str, str], runs: int) -> float:
    for name in names:
        await answer(name)
    return statistics.median([await answer(name) for _ in range(runs) for name in names])


async def together(client: Client, runs: int) -> float:
    seconds = []
    for _ in range(runs):
        started = time.perf_counter()
        await asyncio.gather(client.admin("models/big/load"), client.admin("models/other/load"))
        seconds.append(time.perf_counter() - started)
        await asyncio.gather(client.admin("models/big/unload"), client.admin("models/other/unload"))
    return statistics.median(seconds)


async def measure(folder: Path, runs: int, layers: int) -> None:
    small = smollm2_folder()
    big, other = (
        build_tiny_model(folder / name, "mid", seed=seed, cache=folder, num_hidden_layers=layers, **WIDE)
        for seed, name in enumerate(("big", "other"))
    )
    models = entries(big=big, other=other)
    async with aiohttp.ClientSession() as session:
        with mlxd(small, folder, models) as server:
            await beside(Client(server.url, session), runs)
        with mlxd(small, folder, entries(two=small) + "[residency]\nmax_loaded = 1\n") as server:
            client = Client(server.url, session)
            mine = await swaps(lambda name: client.answer(name, 1), ("it", "two"), runs)
        link = folder / "two"
        link.symlink_to(small)
        with mlx_lm_server(small) as server:
            peer = Client(server.url, session)
            theirs = await swaps(lambda name: peer.answer(name, 1), (str(small), str(link)), runs)
        print(f"swap       first token after {mine:.3f} s; mlx_lm.server {theirs:.3f} s: {mine / theirs:.2f} times")
        times = {}
        for number in (1, 2):
            with mlxd(small, folder, f"{models}[residency]\nmax_loading = {number}\n") as server:
                times[number] = await together(Client(server.url, session), runs)
        print(f"together   one by one {times[1]:.2f} s, both at once {times[2]:.2f} s: {times[2] / times[1]:.2f} times")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--layers", type=int, default=24)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(Path(folder), arguments.runs, arguments.layers))


if __name__ == "__main__":
    main()
