"""`mlxd bench`: how fast models are here, as clients see it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

import click
import msgspec

from mlxd.daemon.cli.address import find_daemon
from mlxd.daemon.cli.answers import view
from mlxd.daemon.cli.bench_runs import Bench, Figures, Plan, Swap
from mlxd.daemon.cli.client import DaemonClient
from mlxd.daemon.cli.completion import model_names
from mlxd.daemon.cli.failures import CommandFailed, Exit, NotReachable
from mlxd.daemon.cli.options import with_json, with_url
from mlxd.daemon.cli.output import Column, print_json, print_table
from mlxd.daemon.cli.views import ModelList, duration, size

_MOST_STREAMS = 64
_EXAMPLES = """\b
Examples:
  mlxd bench                         # the models in memory
  mlxd bench qwen llama --json > figures.json
  mlxd bench qwen --streams 1 --streams 16 --prompt-tokens 4000"""


@click.command(epilog=_EXAMPLES)
@click.argument("models", nargs=-1, shell_complete=model_names)
@click.option(
    "--streams",
    type=click.IntRange(1, _MOST_STREAMS),
    multiple=True,
    default=(1, 4, 8),
    show_default=True,
    metavar="N",
    help="Answers at once; may be given several times.",
)
@click.option("--tokens", type=click.IntRange(2, 100_000), default=128, show_default=True, help="Tokens of an answer.")
@click.option(
    "--prompt-tokens",
    type=click.IntRange(16, 1_000_000),
    default=512,
    show_default=True,
    help="Tokens, about, of the prompt whose first token is timed.",
)
@click.option("--rounds", type=click.IntRange(1, 100), default=3, show_default=True, help="Medians are of so many.")
@with_json
@with_url
def bench(
    *,
    models: tuple[str, ...],
    streams: tuple[int, ...],
    tokens: int,
    prompt_tokens: int,
    rounds: int,
    url: str | None,
    as_json: bool,
) -> None:
    """Measure models: load, first token, answers alone and at once, swaps.

    Each MODEL is measured in turn, by default those in memory. The load is measured of those that are not in memory;
    of two or more models it is also measured how long each takes to its first token right after another one. Other
    traffic on the daemon counts. Models that are loaded stay, as far as there is room.
    """
    plan = Plan(prompt_tokens, tokens, sorted(set(streams)), rounds)
    figures, swaps = asyncio.run(_measure(url, models, plan))
    if as_json:
        print_json({"data": msgspec.to_builtins(figures, str_keys=True), "swaps": msgspec.to_builtins(swaps)})
    else:
        _print(figures, swaps, plan)
    if _problems(figures, swaps):
        raise click.exceptions.Exit(Exit.FAILED)


async def _measure(url: str | None, models: Sequence[str], plan: Plan) -> tuple[list[Figures], list[Swap]]:
    async with DaemonClient(find_daemon(url)) as client:
        names = list(dict.fromkeys(models)) or await _in_memory(client)
        bench = Bench(client, plan)
        figures = []
        for name in names:
            click.echo(f"measuring {name} …", err=True)
            figures.append(await _measured(bench, name))
        good = [each.model for each in figures if each.error is None]
        pairs = list(itertools.pairwise([*good, good[0]])) if len(good) > 1 else []
        return figures, [await bench.swap(model, before) for before, model in pairs]


async def _in_memory(client: DaemonClient) -> list[str]:
    models = view(await client.get("/admin/models"), ModelList).data
    names = [model.id for model in models if model.is_in_memory() and model.kind != "embedding"]
    if not names:
        raise CommandFailed("no model is in memory; name those to measure: mlxd bench MODEL ...")
    return names


async def _measured(bench: Bench, name: str) -> Figures:
    try:
        return await bench.measure(name)
    except NotReachable:
        raise
    except CommandFailed as failure:
        return Figures(name, error=failure.message.splitlines()[0])


def _print(figures: Sequence[Figures], swaps: Sequence[Swap], plan: Plan) -> None:
    columns = [
        Column("MODEL", wraps=True),
        Column("LOAD", right=True),
        Column("FIRST TOKEN", right=True),
        Column("PROMPT", right=True),
        *[Column(f"x{count}", right=True) for count in plan.streams],
        Column("MEMORY", right=True),
    ]
    good = [each for each in figures if each.error is None]
    if good:
        print_table(columns, [_row(each, plan) for each in good])
        click.echo(f"\nPROMPT and xN in tokens/s; FIRST TOKEN of a prompt of {good[0].prompt_tokens} tokens.")
    for swap in swaps:
        if swap.ttft_s is not None:
            how = "a swap" if swap.evicted else "both are in memory"
            click.echo(f"{swap.model} after {swap.before}: first token after {duration(swap.ttft_s)} ({how})")
    for problem in _problems(figures, swaps):
        CommandFailed(problem).show()


def _problems(figures: Sequence[Figures], swaps: Sequence[Swap]) -> list[str]:
    told = [*((each.model, each.error) for each in figures), *((each.model, each.error) for each in swaps)]
    return [f"{model}: {error}" for model, error in told if error is not None]


def _row(each: Figures, plan: Plan) -> list[str]:
    return [
        each.model,
        _or_dash(each.load_s, duration),
        _or_dash(each.ttft_s, duration),
        _or_dash(each.prompt_tps, lambda rate: f"{rate:.0f}"),
        *[f"{each.streams[count]:.1f}" for count in plan.streams],
        size(each.resident_bytes),
    ]


def _or_dash(value: float | None, shown: Any) -> str:
    return "-" if value is None else str(shown(value))
