"""Several models: asked in turn, at once, loaded, and swapped."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from asking import ask, call
from figures import Report, at_least, at_most, in_turn
from models import model_path, prompt_of, salted
from raw_mlx import RawMlx
from servers import Server, mlx_lm_server, mlxd
from speed import PROCESS, together

ANSWER = 16
BATCH = 8


async def residents(report: Report, folder: Path) -> None:
    """Two folders of SmolLM2."""
    model = model_path("smollm2")
    other = folder / "two"
    other.symlink_to(model)
    two = f'[[model]]\nname = "two"\npath = "{other}"\n'
    await _in_turn(report, folder, model, other, two)
    await _at_once(report, folder, model, two)


async def _in_turn(report: Report, folder: Path, model: Path, other: Path, two: str) -> None:
    async with AsyncExitStack() as stack:
        ours = stack.enter_context(mlxd(model, folder, two))
        theirs = stack.enter_context(mlx_lm_server(model))
        await ask(ours, "Hello", 2)
        await ask(ours.of("two"), "Hello", 2)

        async def mlxd_two(number: int) -> float:
            return await _alternating([ours, ours.of("two")], f"both {number}")

        async def mlxd_one(number: int) -> float:
            return await _alternating([ours, ours], f"one {number}")

        async def peer(number: int) -> float:
            return await _alternating([theirs.of(str(model)), theirs.of(str(other))], f"peer {number}")

        parts = {"mlxd": mlxd_two, "mlxd, one model": mlxd_one, "mlx_lm.server": peer}
        samples = await in_turn(parts, report.rounds)
        what = "smollm2, two resident models asked in turn"
        report.ratio(what, "tok/s", samples, "mlxd", "mlxd, one model", aim=at_least(0.95))
        report.ratio(what, "tok/s", samples, "mlxd", "mlx_lm.server", aim=at_least(1.5))


async def _alternating(servers: Sequence[Server], salt: str) -> float:
    """Tokens a second of four answers, one after the other."""
    started, tokens = time.perf_counter(), 0
    for number in range(4):
        asked = salted(prompt_of(12, "smollm2"), f"{salt} {number}")
        tokens += (await ask(servers[number % 2], asked, ANSWER)).tokens
    return tokens / (time.perf_counter() - started)


async def _at_once(report: Report, folder: Path, model: Path, two: str) -> None:
    for side, config, aim in (("mlxd", "", at_least(1.15)), ("mlxd, process", PROCESS, at_least(1.4))):
        with mlxd(model, folder, two + config, name=side) as server:
            both = [server, server.of("two")]
            for each in both:
                await ask(each, "Hello", 2)

            async def apart(number: int, both: Sequence[Server] = both) -> float:
                return await _batches(both, number, at_once=False)

            async def joined(number: int, both: Sequence[Server] = both) -> float:
                return await _batches(both, number, at_once=True)

            samples = await in_turn({"one after the other": apart, side: joined}, report.rounds)
        what = f"smollm2, two models at once, {BATCH} streams each"
        report.ratio(what, "tok/s", samples, side, "one after the other", aim=aim)


async def _batches(servers: Sequence[Server], number: int, *, at_once: bool) -> float:
    """Tokens a second of a batch of each."""

    async def batch(server: Server) -> int:
        salt = f"{server.model} {number} {at_once}"
        prompts = [salted(prompt_of(12, "smollm2"), f"{salt} {place}") for place in range(BATCH)]
        _, answers = await together(server, prompts, [ANSWER] * BATCH)
        return sum(answer.tokens for answer in answers)

    started = time.perf_counter()
    if at_once:
        tokens = sum(await asyncio.gather(*map(batch, servers)))
    else:
        tokens = sum([await batch(server) for server in servers])
    return tokens / (time.perf_counter() - started)


async def loads(report: Report, folder: Path) -> None:
    """From a request for a model that is not there to its first token, new and coming back."""
    model = model_path("smollm2")
    disk = 'engine = { prefix_cache_disk = "4GB" }\n'
    async with AsyncExitStack() as stack:
        ours = stack.enter_context(mlxd(model, folder, disk))
        raw = await stack.enter_async_context(RawMlx())
        await ask(ours, "Hello", 1)  # MLX is imported on both sides

        async def load(_: int) -> float:
            await call(ours, "POST", "/admin/models/it/unload")
            return (await ask(ours, "Hello", 1)).ttft

        async def limit(_: int) -> float:
            return float((await raw.load(model, fresh=True))["seconds"])

        samples = await in_turn({"raw": limit, "mlxd": load}, report.rounds)
        report.ratio("smollm2, load to first token", "s", samples, "mlxd", "raw", aim=at_most(1.05))
        await _swap_back(report, ours)


async def _swap_back(report: Report, server: Server) -> None:
    """The first token of a prompt whose prefix is kept, after unload and load, against one that never left."""

    async def pair(number: int) -> tuple[float, float]:
        text = salted(prompt_of(700), f"kept {number}")
        await ask(server, text, 2)
        stayed = (await ask(server, text, 2)).ttft
        await call(server, "POST", "/admin/models/it/unload")
        await call(server, "POST", "/admin/models/it/load")
        return (await ask(server, text, 2)).ttft, stayed

    pairs = [await pair(number) for number in range(report.rounds + 1)][1:]
    samples = {"mlxd": [back for back, _ in pairs], "never swapped": [stayed for _, stayed in pairs]}
    what = "smollm2, first token of a kept prompt after the load of a swap back"
    report.ratio(what, "s", samples, "mlxd", "never swapped", aim=at_most(1.3))
