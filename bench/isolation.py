#!/usr/bin/env python3
"""What a process of its own costs a model, as ratios of one run: two daemons, A B A B.

usage: isolation.py [--model micro|tiny|smollm2] [--rounds 5] [--tokens 256] [--loads 3]

Streams are of a client on the same machine; with several they start together. `load` is a load and nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import aiohttp
from overhead import model_path
from servers import Server, mlxd
from streams import Client

STREAMS = (1, 8)


async def tokens_per_second(client: Client, streams: int, tokens: int) -> float:
    """Of so many answers at once, from their first piece to their last."""
    requests = [client.counting(f"{number} {time.time_ns()}", tokens) for number in range(streams)]

    async def read(request: bytes) -> list[float]:
        return [moment async for moment in client.pieces(request)]

    moments = await asyncio.gather(*[read(request) for request in requests])
    return streams * tokens / (max(map(max, moments)) - min(map(min, moments)))


async def load_seconds(client: Client) -> float:
    """Of a load, from nothing."""
    await client.call("POST", "/admin/models/it/unload")
    started = time.perf_counter()
    await client.call("POST", "/admin/models/it/load")
    return time.perf_counter() - started


async def measure(servers: list[Server], rounds: int, tokens: int, loads: int) -> None:
    taken: dict[str, dict[str, list[float]]] = {server.name: {} for server in servers}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
        clients = {server.name: Client(server, session, {"0": -100}) for server in servers}
        for number in range(rounds + 1):
            for name, client in clients.items():
                for streams in STREAMS:
                    rate = await tokens_per_second(client, streams, tokens)
                    if number:  # the first round warms up
                        taken[name].setdefault(f"{streams} streams, tokens/s", []).append(rate)
        for _ in range(loads):
            for name, client in clients.items():
                taken[name].setdefault("load, s", []).append(await load_seconds(client))
    thread, process = (taken[server.name] for server in servers)
    for part, values in thread.items():
        ours, theirs = statistics.median(values), statistics.median(process[part])
        pairs = [other / one for one, other in zip(values, process[part], strict=True)]
        ratio = f"{statistics.median(pairs):.3f} ({min(pairs):.3f} to {max(pairs):.3f})"
        print(f"{part:22} thread {ours:9.3f}   process {theirs:9.3f}   ratio {ratio}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=["micro", "tiny", "smollm2"], default="tiny")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--loads", type=int, default=3)
    arguments = parser.parse_args()
    path = model_path(arguments.model)
    with tempfile.TemporaryDirectory() as name, ExitStack() as running:
        servers = []
        for isolation in ("thread", "process"):
            folder = Path(name) / isolation
            folder.mkdir()
            config = f'[engine]\nisolation = "{isolation}"\n'
            servers.append(running.enter_context(mlxd(path, folder, config, name=isolation)))
        asyncio.run(measure(servers, arguments.rounds, arguments.tokens, arguments.loads))


if __name__ == "__main__":
    main()
