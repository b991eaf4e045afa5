"""What one request feels of the others: first tokens, pauses, cancels, and calls of status."""

from __future__ import annotations

import asyncio
import re
import statistics
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path

from asking import Streams, ask, call, until
from figures import Figure, Report, at_most, in_turn
from models import model_path, prompt_of, salted
from raw_mlx import RawMlx
from servers import Server, mlx_lm_server, mlxd
from speed import compared

LONG = 1024
PREFIX = 1000
CANCELS = 100
# Background answers must outlast what is measured beside them.
LASTING = 3000


async def latency(report: Report, folder: Path) -> None:
    """First tokens and pauses of a small model."""
    async with AsyncExitStack() as stack:
        sides = await compared(stack, report, "tiny", folder, ("mlx_lm.server",))
        await _beside_one(report, sides.servers)
        await _cancels(report, sides.servers["mlxd"])
    async with AsyncExitStack() as stack:
        sides = await compared(stack, report, "micro", folder, ("mlx_lm.server",))
        await _added(report, sides.model, sides.raw, sides.servers)
        await _calls(report, sides.servers)


async def pauses(report: Report, folder: Path) -> None:
    """What a long prompt costs streams, and a prefix that is asked again, with SmolLM2."""
    model = model_path("smollm2")
    with mlxd(model, folder) as ours, mlx_lm_server(model) as theirs:
        servers = {"mlxd": ours, "mlx_lm.server": theirs}
        samples: dict[str, list[float]] = {}
        for name, server in servers.items():
            # a round takes half a minute: fewer of them, and one server at a time as its streams never rest
            samples[name] = [await _longest_gap(server, number) for number in range(max(2, report.rounds // 2))]
        what = f"smollm2, longest pause of 4 streams while {LONG:,} tokens join"
        report.ratio(what, "s", samples, "mlxd", "mlx_lm.server", aim=at_most(0.2))
        await _prefix(report, ours)


async def _beside_one(report: Report, servers: Mapping[str, Server]) -> None:
    """A short prompt, and a seeded request, while a stream decodes."""

    async def first_token(server: Server, number: int) -> float:
        async with Streams(server, [f"[{server.name} {number}] on and on"], LASTING):
            return (await ask(server, salted(prompt_of(8), f"short {number}"), 4)).ttft

    async def seeded(server: Server, number: int) -> float:
        # a server that cannot have both in a batch lets the stream come to its end first
        async with Streams(server, [f"[{server.name} {number}] and so on"], 600, may_end=True):
            asked = salted(prompt_of(8), f"seeded {number}")
            return (await ask(server, asked, 16, seed=7, temperature=0.7)).seconds

    for what, measure, aim in (
        ("tiny, first token of a short prompt while a stream decodes", first_token, at_most(0.15)),
        ("tiny, 16 tokens with a seed while a stream decodes", seeded, at_most(0.2)),
    ):
        samples = await in_turn({name: partial(measure, server) for name, server in servers.items()}, report.rounds)
        report.ratio(what, "s", samples, "mlxd", "mlx_lm.server", aim=aim)
        report.ratio(what, "s", samples, "mlxd, process", "mlx_lm.server", aim=aim)


async def _longest_gap(server: Server, number: int) -> float:
    prompts = [f"Write a long story, number {number * 4 + place}, about a fox." for place in range(4)]
    async with Streams(server, prompts, 1000) as streams:
        started = time.perf_counter()
        await ask(server, salted(prompt_of(LONG), f"joins {number}"), 1)
        return streams.longest_gap(started, time.perf_counter())


async def _prefix(report: Report, server: Server) -> None:
    """A system prompt and turns: the second request has most of its prompt from the first."""

    async def firsts(number: int) -> tuple[float, float]:
        system = {"role": "system", "content": salted(prompt_of(PREFIX), f"prefix {number}")}
        moments = []
        for question in ("What is it about?", "Who runs away?"):
            answer = await ask(server, [system, {"role": "user", "content": question}], 2)
            moments.append(answer.ttft)
        return moments[0], moments[1]

    pairs = [await firsts(number) for number in range(max(2, report.rounds // 2))]
    samples = {"first": [first for first, _ in pairs], "mlxd": [second for _, second in pairs]}
    what = f"smollm2, first token, {PREFIX:,} tokens of its prompt shared with the request before"
    report.ratio(what, "s", samples, "mlxd", "first", aim=at_most(0.1))


async def _added(report: Report, model: Path, raw: RawMlx, servers: Mapping[str, Server]) -> None:
    """What a request costs beside its tokens."""

    async def limit(number: int) -> float:
        one = [
            (await raw.single(model, salted(prompt_of(8), f"one {number} {place}"), 1))["seconds"]
            for place in range(20)
        ]
        return float(statistics.median(one))

    async def served(server: Server, number: int) -> float:
        one = [(await ask(server, salted(prompt_of(8), f"one {number} {place}"), 1)).seconds for place in range(20)]
        return statistics.median(one)

    parts = {"raw": limit, **{name: partial(served, server) for name, server in servers.items()}}
    samples = await in_turn(parts, report.rounds)
    for side in servers:
        added = [1000 * (ours - theirs) for ours, theirs in zip(samples[side], samples["raw"], strict=True)]
        aim = at_most(3) if side.startswith("mlxd") else None
        report.add(Figure("micro, added to one request with max_tokens 1", side, "ms", added, aim=aim))


async def _calls(report: Report, servers: Mapping[str, Server]) -> None:
    """Calls of status while eight streams take all there is."""
    for side in ("mlxd", "mlxd, process"):
        server = servers[side]
        slowest: dict[str, list[float]] = {"/health": [], "/admin/models": []}
        for number in range(max(2, report.rounds // 2)):
            async with Streams(server, [f"[{number} {place}] load" for place in range(8)], LASTING):
                for path, found in slowest.items():
                    times = [await _timed(server, path) for _ in range(100)]
                    found.append(1000 * statistics.quantiles(times, n=100)[98])
        for path, found in slowest.items():
            what = f"micro, {path} under full load, 99th percentile of 100"
            report.add(Figure(what, side, "ms", found, aim=at_most(20)))


async def _timed(server: Server, path: str) -> float:
    started = time.perf_counter()
    await call(server, "GET", path)
    taken = time.perf_counter() - started
    await asyncio.sleep(0.01)
    return taken


async def _cancels(report: Report, server: Server) -> None:
    """From departures, half of them in a prompt, to free memory; in steps, of which a chunk of that prompt is the
    longest.
    """
    text = prompt_of(2000)
    step = max([await _chunk_seconds(server, salted(text, f"whole {number}")) for number in range(3)])
    seconds = [await _freed(server, text, number) for number in range(CANCELS)]
    worst = max(seconds) / step
    note = f"worst of {CANCELS}: {1000 * max(seconds):.0f} ms, median {1000 * statistics.median(seconds):.0f} ms"
    report.add(Figure("tiny, cancel to freed, in chunks", "mlxd", "chunks", [worst], aim=at_most(1), note=note))


async def _chunk_seconds(server: Server, prompt: str) -> float:
    """The mean of the chunks of one prompt."""
    answer = await ask(server, prompt, 1)
    config = (await call(server, "GET", "/admin/config")).decode()
    found = re.search(r'"prefill_chunk": ?(\d+)', config)
    assert found is not None, config
    return answer.ttft / (2000 / int(found[1]))


async def _freed(server: Server, text: str, number: int) -> float:
    """Seconds from one departure, by the daemon's own count."""
    count, before = await _cancelled(server)
    if number % 2:
        with suppress(TimeoutError):
            async with asyncio.timeout(0.05 + 0.002 * number):
                await ask(server, salted(text, f"leave {number}"), 100)
    else:
        async with Streams(server, [f"[{number}] stays for a while"], LASTING):
            pass

    async def counted() -> float | None:
        now = await _cancelled(server)
        return None if now[0] == count else now[1] - before

    return await until(counted)


async def _cancelled(server: Server) -> tuple[float, float]:
    """How many cancels there were, and the seconds of all together."""
    lines = (await call(server, "GET", "/metrics")).decode().splitlines()
    sums = [
        sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"mlxd_cancel_to_freed_seconds_{what}"))
        for what in ("count", "sum")
    ]
    return sums[0], sums[1]
