#!/usr/bin/env python3
"""What mlxd costs over raw mlx-lm, and how it compares with its peers: a table of one run on this machine.

usage: run.py [GROUP ...] [--rounds 5] [--results bench/results]

All that is compared is started here and measured in turn; a ratio is the median of the rounds' ratios. Without a GROUP
all of them are run. `--results` writes the table, and all samples as JSON, into that folder.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import feel
import footprint
import residents
import scaling
import speed
from figures import Report, table
from machine import described, machine

GROUPS: dict[str, Callable[[Report, Path], Awaitable[None]]] = {
    "startup": footprint.startup,
    "memory": footprint.memory,
    "micro": speed.micro,
    "real": speed.real,
    "latency": feel.latency,
    "pauses": feel.pauses,
    "residents": residents.residents,
    "loads": residents.loads,
    "scaling": scaling.scaling,
}


async def measured(groups: list[str], report: Report) -> None:
    """Run groups one after the other, each in a folder of its own."""
    for name in groups:
        print(f"{name}:", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            await GROUPS[name](report, Path(folder))


def page(report: Report, facts: dict[str, str], taken: float) -> str:
    """The table, with what it is of."""
    lines = [
        f"{described(facts)}. {report.rounds} rounds, {taken / 60:.0f} minutes.",
        "",
        table(report.figures),
    ]
    if report.skipped:
        lines += ["", "Left out:", *(f"- {reason}" for reason in report.skipped)]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=", ".join(GROUPS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--results", type=Path)
    options: Any = parser.parse_args()
    if unknown := set(options.groups) - set(GROUPS):
        parser.error(f"no group is called {', '.join(sorted(unknown))}; there are {', '.join(GROUPS)}")
    facts, report = machine(), Report(options.rounds)
    print(described(facts), flush=True)
    print(f"load of the machine before: {os.getloadavg()[0]:.2f}", flush=True)
    started = time.monotonic()
    asyncio.run(measured(options.groups or list(GROUPS), report))
    text = page(report, facts, time.monotonic() - started)
    print(f"\n{text}")
    if options.results:
        options.results.mkdir(parents=True, exist_ok=True)
        stem = options.results / time.strftime("%Y-%m-%d-%H%M")
        stem.with_suffix(".md").write_text(text)
        kept = {"machine": facts, "rounds": options.rounds, "figures": [figure.as_json() for figure in report.figures]}
        stem.with_suffix(".json").write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
