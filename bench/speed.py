"""Tokens a second: one stream and many, against raw mlx-lm and against peers."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from asking import Answer, ask
from figures import Report, at_least, at_most, in_turn
from models import model_path, prompt_of, salted
from peers import PeerMissing
from raw_mlx import RawMlx
from servers import Server, mlx_lm_server, mlx_openai_server, mlxd, vllm_mlx

PROCESS = '[engine]\nisolation = "process"\n'
# Tokens of each answer: for some seconds of work at 8 streams.
TOKENS = {"micro": 512, "tiny": 128, "mid": 96, "smollm2": 48}
WORDS = 12
RAGGED = (8, 16, 24, 40, 64, 96, 160, 256)
IDLE_CONNECTIONS = 200


@dataclass(slots=True)
class Sides:
    """What is compared, all started, with one model."""

    name: str
    model: Path
    raw: RawMlx
    servers: dict[str, Server] = field(default_factory=dict)

    def prompts(self, count: int, salt: object) -> list[str]:
        """So many different ones that nobody has seen before."""
        return [salted(prompt_of(WORDS, self.name), f"{salt} {number}") for number in range(count)]


@contextmanager
def thread(model: Path, folder: Path) -> Iterator[Server]:
    """mlxd with its defaults."""
    with mlxd(model, _made(folder / "thread"), name="mlxd") as server:
        yield server


@contextmanager
def process(model: Path, folder: Path) -> Iterator[Server]:
    """mlxd with a process for each model."""
    with mlxd(model, _made(folder / "process"), PROCESS, name="mlxd, process") as server:
        yield server


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


async def compared(stack: AsyncExitStack, report: Report, name: str, folder: Path, peers: Sequence[str]) -> Sides:
    """Start all sides with a model; peers that cannot be had here are noted and left out."""
    model = model_path(name)
    sides = Sides(name, model, await stack.enter_async_context(RawMlx()))
    await sides.raw.load(model)
    ways = {
        "mlxd": lambda: thread(model, folder / name),
        "mlxd, process": lambda: process(model, folder / name),
        "mlx_lm.server": lambda: mlx_lm_server(model),
        "vllm-mlx": lambda: vllm_mlx(model),
        "mlx-openai-server": lambda: mlx_openai_server(model),
    }
    for peer in ("mlxd", "mlxd, process", *peers):
        try:
            server = stack.enter_context(ways[peer]())
            await ask(server, "Hello", 4)
        except (PeerMissing, RuntimeError, TimeoutError) as error:
            report.skip(f"{peer}, {name}: {error}")
            continue
        sides.servers[peer] = server
    return sides


async def together(server: Server, prompts: Sequence[str], tokens: Sequence[int]) -> tuple[float, list[Answer]]:
    """Tokens a second of answers at once, by the server's own count, and the answers."""
    started = time.perf_counter()
    answers = await asyncio.gather(*[ask(server, *asked) for asked in zip(prompts, tokens, strict=True)])
    return sum(answer.tokens for answer in answers) / (time.perf_counter() - started), answers


async def raw_speed(sides: Sides, tokens: Sequence[int], number: int) -> float:
    """Tokens a second of mlx-lm itself, prompts included."""
    prompts = sides.prompts(len(tokens), f"raw {number}")
    if len(tokens) == 1:
        done = await sides.raw.single(sides.model, prompts[0], tokens[0])
    else:
        done = await sides.raw.batch(sides.model, prompts, tokens)
    return float(done["tokens"]) / float(done["seconds"])


async def streams(
    report: Report, sides: Sides, tokens: Sequence[int]
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Samples of tokens a second and of the median first token, for answers of so many tokens at once."""
    firsts: dict[str, list[float]] = {name: [] for name in sides.servers}

    async def one(name: str, number: int) -> float:
        speed, answers = await together(sides.servers[name], sides.prompts(len(tokens), f"{name} {number}"), tokens)
        firsts[name].append(statistics.median(answer.ttft for answer in answers))
        return speed

    parts: dict[str, Callable[[int], Awaitable[float]]] = {
        "raw": partial(raw_speed, sides, tokens),
        **{name: partial(one, name) for name in sides.servers},
    }
    samples = await in_turn(parts, report.rounds)
    return samples, {name: moments[1:] for name, moments in firsts.items()}


async def micro(report: Report, folder: Path) -> None:
    """All is overhead: stands for the step time of a fast accelerator."""
    async with AsyncExitStack() as stack:
        sides = await compared(stack, report, "micro", folder, ("mlx_lm.server", "vllm-mlx", "mlx-openai-server"))
        for count in (1, 2, 4, 8, 16):
            samples, _ = await streams(report, sides, [TOKENS["micro"]] * count)
            what = f"micro, {_streams(count)}, tokens/s"
            for side in ("mlxd", "mlxd, process"):
                report.ratio(what, "tok/s", samples, side, "raw", aim=at_least(0.5) if count == 8 else None)
            report.ratio(what, "tok/s", samples, "mlxd", "mlx_lm.server", aim=at_least(2.5) if count == 8 else None)
            report.ratio(what, "tok/s", samples, "mlxd", "vllm-mlx", aim=at_least(2) if count == 8 else None)
            report.ratio(what, "tok/s", samples, "mlxd", "mlx-openai-server")
        samples, firsts = await streams(report, sides, [TOKENS["micro"] // 4] * 32)
        for peer, faster, sooner in (("mlx_lm.server", at_least(2.5), at_most(0.05)), ("vllm-mlx", None, None)):
            report.ratio("micro, 32 streams, tokens/s", "tok/s", samples, "mlxd", peer, aim=faster)
            report.ratio("micro, 32 streams, median first token", "s", firsts, "mlxd", peer, aim=sooner)
        samples, _ = await streams(report, sides, RAGGED)
        for base in ("raw", "mlx_lm.server"):
            report.ratio("micro, 8 answers of 8 to 256 tokens, tokens/s", "tok/s", samples, "mlxd", base)
        await beside_idle_connections(report, sides)


async def beside_idle_connections(report: Report, sides: Sides) -> None:
    """What clients cost that are connected and ask nothing."""
    server = sides.servers["mlxd"]
    host, port = server.url.removeprefix("http://").split(":")
    tokens = [TOKENS["micro"]] * 8

    async def quiet(number: int) -> float:
        return (await together(server, sides.prompts(8, f"quiet {number}"), tokens))[0]

    async def crowded(number: int) -> float:
        opened = [await asyncio.open_connection(host, int(port)) for _ in range(IDLE_CONNECTIONS)]
        try:
            return (await together(server, sides.prompts(8, f"crowded {number}"), tokens))[0]
        finally:
            for _, writer in opened:
                writer.close()

    samples = await in_turn({"quiet": quiet, "mlxd": crowded}, report.rounds)
    report.ratio(f"micro, 8 streams beside {IDLE_CONNECTIONS} idle connections", "tok/s", samples, "mlxd", "quiet")


async def real(report: Report, folder: Path) -> None:
    """The model's own time rules."""
    for name in ("mid", "smollm2"):
        async with AsyncExitStack() as stack:
            sides = await compared(stack, report, name, folder, ("mlx_lm.server",))
            for count in (1, 8):
                samples, _ = await streams(report, sides, [TOKENS[name]] * count)
                what = f"{name}, {_streams(count)}, tokens/s"
                for side in ("mlxd", "mlxd, process"):
                    report.ratio(what, "tok/s", samples, side, "raw", aim=at_least(0.98 if count == 1 else 0.97))
                aim = at_least(1.05) if (name, count) == ("smollm2", 8) else None
                report.ratio(what, "tok/s", samples, "mlxd", "mlx_lm.server", aim=aim)


def _streams(count: int) -> str:
    return "1 stream" if count == 1 else f"{count} streams"
