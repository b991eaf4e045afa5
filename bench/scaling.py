"""What a request costs against how much of everything there is: known models, waiters, streams, context; as plots."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
from asking import ask
from figures import Report
from matplotlib import pyplot
from models import model_path, prompt_of, salted
from servers import Server, mlxd
from speed import together

mpl.use("Agg")

KNOWN = (1, 10, 100, 1000)
WAITERS = (1, 10, 100, 1000)
STREAMS = (1, 2, 4, 8, 16, 32, 64)
CONTEXT = (1000, 2000, 4000, 8000)
PLOTS = Path(__file__).resolve().parent.parent / "docs" / "scaling.png"


@dataclass(frozen=True, slots=True)
class Curve:
    """Medians against a size."""

    title: str
    size: str
    unit: str
    sizes: Sequence[int]
    values: Sequence[float]


async def scaling(report: Report, folder: Path) -> None:
    """All four, and the plot of them."""
    curves = [
        await _known_models(report, folder),
        await _waiters(report, folder),
        await _streams(report, folder),
        await _context(report, folder),
    ]
    for curve in curves:
        what = f"{curve.title}: {curve.sizes[0]:,} to {curve.sizes[-1]:,} {curve.size}"
        note = ", ".join(f"{value:.3g}" for value in curve.values)
        samples = {"most": curve.values[-1:], "least": curve.values[:1]}
        report.ratio(what, curve.unit, samples, "most", "least", note=note)
    plot(curves, PLOTS)


async def _median(measure: Callable[[int], Awaitable[float]], count: int) -> float:
    return statistics.median([await measure(number) for number in range(count)])


async def _known_models(report: Report, folder: Path) -> Curve:
    """A short request to a daemon that knows so many other models."""
    model, values = model_path("micro"), []
    for known in KNOWN:
        others = "".join(f'[[model]]\nname = "m{number}"\npath = "{model}"\n' for number in range(known - 1))
        with mlxd(model, folder, others) as server:
            await ask(server, "Hello", 1)

            async def one(number: int, server: Server = server) -> float:
                return 1000 * (await ask(server, salted(prompt_of(8), number), 1)).seconds

            values.append(await _median(one, 20 * report.rounds))
    return Curve("one request, max_tokens 1", "known models", "ms", KNOWN, values)


async def _waiters(report: Report, folder: Path) -> Curve:
    """Requests that wait for one place, one after the other: what each of them takes."""
    values = []
    config = "[engine]\nmax_running = 1\nmax_waiting = 2000\n"
    with mlxd(model_path("micro"), folder, config) as server:
        await ask(server, "Hello", 1)
        for count in WAITERS:

            async def all_of_them(number: int, count: int = count) -> float:
                started = time.perf_counter()
                prompts = [salted(prompt_of(8), f"{count} {number} {place}") for place in range(count)]
                await asyncio.gather(*[ask(server, prompt, 4) for prompt in prompts])
                return 1000 * (time.perf_counter() - started) / count

            values.append(await _median(all_of_them, report.rounds))
    return Curve("one of many requests that wait", "requests at once", "ms", WAITERS, values)


async def _streams(report: Report, folder: Path) -> Curve:
    """A token of one of so many streams: the batch is shared, the rest is not."""
    values = []
    with mlxd(model_path("micro"), folder, "[engine]\nmax_running = 64\n") as server:
        await ask(server, "Hello", 1)
        for count in STREAMS:

            async def all_of_them(number: int, count: int = count) -> float:
                prompts = [salted(prompt_of(8), f"{count} {number} {place}") for place in range(count)]
                speed, _ = await together(server, prompts, [128] * count)
                return 1e6 / speed

            values.append(await _median(all_of_them, report.rounds))
    return Curve("a token, micro", "streams", "µs", STREAMS, values)


async def _context(report: Report, folder: Path) -> Curve:
    """The first token of a prompt of so many tokens."""
    values = []
    with mlxd(model_path("tiny"), folder) as server:
        await ask(server, "Hello", 1)
        for length in CONTEXT:

            async def first(number: int, length: int = length) -> float:
                return (await ask(server, salted(prompt_of(length), f"{length} {number}"), 1)).ttft

            values.append(await _median(first, max(2, report.rounds // 2)))
    return Curve("first token, tiny", "words of the prompt", "s", CONTEXT, values)


def plot(curves: Sequence[Curve], file: Path) -> None:
    """One picture of all curves, both axes logarithmic: what is flat costs nothing, slope 1 is in proportion."""
    figure, axes = pyplot.subplots(1, len(curves), figsize=(4 * len(curves), 3.4), layout="constrained")
    for axis, curve in zip(axes, curves, strict=True):
        axis.loglog(curve.sizes, curve.values, marker="o")
        axis.set(title=curve.title, xlabel=curve.size, ylabel=curve.unit)
        axis.set_xticks(curve.sizes, [f"{size:,}" for size in curve.sizes])
        axis.set_ylim(min(curve.values) / 3, max(curve.values) * 3)
        axis.minorticks_off()
        axis.grid(visible=True, alpha=0.3)
    figure.savefig(file, dpi=110)
    pyplot.close(figure)
