#!/usr/bin/env python3
"""What a model on two ranks of this machine does: beside raw mlx-lm on two ranks, and beside the model in one piece.

usage: split.py [--rounds 3] [--model tiny]

Both ranks share the cores of one machine, so nothing gets faster here; what counts is the ratio to raw mlx-lm.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from asking import Answer, ask
from figures import Report, at_least, in_turn
from models import model_path, prompt_of, salted
from servers import Server, mlxd

ANSWER = 48
LAUNCH = str(Path(sys.executable).with_name("mlx.launch"))
HOSTS = 'hosts = ["localhost", "localhost"]\n'
PROCESS = 'engine = { isolation = "process" }\n'


async def raw(model: Path, width: int, _: int) -> float:
    """Tokens a second of `mlx.launch -n 2`, with the cores shared as mlxd shares them. It looks again and again into an
    input that is at its end, so it gets one that is not.
    """
    worker = str(Path(__file__).with_name("raw_ranks.py"))
    launch = [LAUNCH, "-n", "2", "--env", f"OPENBLAS_NUM_THREADS={max(1, (os.cpu_count() or 2) // 2)}"]
    command = [*launch, "--", sys.executable, worker, str(model), str(width), str(ANSWER), prompt_of(8)]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    value = float(json.loads(await process.stdout.read()))
    await process.wait()
    return value


async def served(server: Server, width: int, number: int) -> float:
    """Tokens a second of streams that start at once."""
    asked = [salted(prompt_of(8), f"{server.name} {number} {place}") for place in range(width)]
    answers: list[Answer] = await asyncio.gather(*[ask(server, words, ANSWER) for words in asked])
    began, ended = min(answer.started for answer in answers), max(answer.ended for answer in answers)
    return sum(answer.tokens for answer in answers) / (ended - began)


async def measured(report: Report, model: Path, whole: Server, split: Server) -> None:
    for server in (whole, split):
        await ask(server, "Hello", 8)
    for width in (1, 8):
        sides = {
            "whole": partial(served, whole, width),
            "split": partial(served, split, width),
            "raw": partial(raw, model, width),
        }
        speeds = await in_turn(sides, report.rounds)
        report.ratio(f"{width} streams", "tokens/s", speeds, "split", "raw", aim=at_least(0.9))
        report.ratio(f"{width} streams", "tokens/s", speeds, "split", "whole")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", default="tiny")
    arguments = parser.parse_args()
    model = model_path(arguments.model)
    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name) / side for side in ("whole", "split")]
        for folder in folders:
            folder.mkdir()
        with (
            mlxd(model, folders[0], PROCESS, name="whole") as whole,
            mlxd(model, folders[1], HOSTS, name="split") as split,
        ):
            asyncio.run(measured(Report(arguments.rounds), model, whole, split))


if __name__ == "__main__":
    main()
