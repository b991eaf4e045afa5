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
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from asking import ask, call
from models import model_path
from servers import Server, mlx_lm_server, mlxd
from tiny_models import build_tiny_model

# About 150 MB a layer in float32.
WIDE = {"hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}


async def answer(server: Server, max_tokens: int = 8) -> float:
    """Seconds that a short answer takes."""
    return (await ask(server, "Count to ten.", max_tokens, stream=False)).seconds


async def admin(server: Server, path: str) -> float:
    """Seconds that a POST takes."""
    started = time.perf_counter()
    await call(server, "POST", f"/admin/{path}")
    return time.perf_counter() - started


def entries(**models: Path) -> str:
    return "".join(f'[[model]]\nname = "{name}"\npath = "{path}"\n' for name, path in models.items())


async def beside(server: Server, runs: int) -> None:
    await answer(server)
    quiet, loading, seconds = [], [], []
    for _ in range(runs):
        quiet += [await answer(server) for _ in range(10)]
        load = asyncio.create_task(admin(server, "models/big/load"))
        while not load.done():
            loading.append(await answer(server))
        seconds.append(await load)
        await admin(server, "models/big/unload")
    alone, with_load = statistics.median(quiet), statistics.median(loading)
    print(
        f"beside     load {statistics.median(seconds):.2f} s; answer {alone:.3f} s alone, {with_load:.3f} s beside it "
        f"({len(loading)} answers, longest {max(loading):.3f} s): {with_load / alone:.2f} times"
    )


async def swaps(servers: Sequence[Server], runs: int) -> float:
    for server in servers:
        await answer(server, 1)
    return statistics.median([await answer(server, 1) for _ in range(runs) for server in servers])


async def together(server: Server, runs: int) -> float:
    seconds = []
    for _ in range(runs):
        started = time.perf_counter()
        await asyncio.gather(admin(server, "models/big/load"), admin(server, "models/other/load"))
        seconds.append(time.perf_counter() - started)
        await asyncio.gather(admin(server, "models/big/unload"), admin(server, "models/other/unload"))
    return statistics.median(seconds)


async def measure(folder: Path, runs: int, layers: int) -> None:
    small = model_path("smollm2")
    big, other = (
        build_tiny_model(folder / name, "mid", seed=seed, cache=folder, num_hidden_layers=layers, **WIDE)
        for seed, name in enumerate(("big", "other"))
    )
    models = entries(big=big, other=other)
    with mlxd(small, folder, models) as server:
        await beside(server, runs)
    with mlxd(small, folder, entries(two=small) + "[residency]\nmax_loaded = 1\n") as server:
        mine = await swaps((server, server.of("two")), runs)
    link = folder / "two"
    link.symlink_to(small)
    with mlx_lm_server(small) as server:
        theirs = await swaps((server.of(str(small)), server.of(str(link))), runs)
    print(f"swap       first token after {mine:.3f} s; mlx_lm.server {theirs:.3f} s: {mine / theirs:.2f} times")
    times = {}
    for number in (1, 2):
        with mlxd(small, folder, f"{models}[residency]\nmax_loading = {number}\n") as server:
            times[number] = await together(server, runs)
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
