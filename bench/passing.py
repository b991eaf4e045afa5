#!/usr/bin/env python3
"""What it costs that a peer answers: the same requests to a daemon, and to another one that passes them on to it.

usage: passing.py [--rounds 5] [--requests 100]

one        a request with max_tokens 1, streamed: milliseconds until its last byte, directly and passed on
streams    tokens a second of 8 streams, directly and passed on
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from asking import Answer, ask, call, until
from figures import Figure, Report, at_most, in_turn
from models import model_path, prompt_of, salted
from servers import Server, mlxd

WIDTH = 8
ANSWER = 128
PEER = '[[peer]]\nname = "there"\nurl = "{url}"\n'


async def one(server: Server, requests: int, number: int) -> float:
    """Median milliseconds of requests, one after the other."""
    asked = [salted(prompt_of(8), f"{server.name} {number} {place}") for place in range(requests)]
    return 1000 * statistics.median([(await ask(server, words, 1)).seconds for words in asked])


async def streams(server: Server, number: int) -> float:
    """Tokens a second of streams that start at once."""
    asked = [salted(prompt_of(8), f"{server.name} {number} {place}") for place in range(WIDTH)]
    answers: list[Answer] = await asyncio.gather(*[ask(server, words, ANSWER) for words in asked])
    began, ended = min(answer.started for answer in answers), max(answer.ended for answer in answers)
    return sum(answer.tokens for answer in answers) / (ended - began)


async def measured(report: Report, sides: dict[str, Server], requests: int) -> None:
    """Both kinds of work, on both sides in turn."""

    async def is_up() -> bool | None:
        return b'"state":"up"' in await call(sides["passed on"], "GET", "/admin/peers") or None

    await until(is_up)
    for server in sides.values():
        await ask(server, "Hello", 4)
    singles = await in_turn({name: partial(one, server, requests) for name, server in sides.items()}, report.rounds)
    added = [there - here for there, here in zip(singles["passed on"], singles["direct"], strict=True)]
    report.ratio("one request with max_tokens 1", "ms", singles, "passed on", "direct")
    report.add(Figure("added to one request", "passed on", "ms", added, aim=at_most(2)))
    batches = await in_turn({name: partial(streams, server) for name, server in sides.items()}, report.rounds)
    report.ratio(f"{WIDTH} streams", "tokens/s", batches, "passed on", "direct")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=100)
    arguments = parser.parse_args()
    model = model_path("micro")
    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name) / side for side in ("there", "here")]
        for folder in folders:
            folder.mkdir()
        with mlxd(model, folders[0]) as there, mlxd(model, folders[1], PEER.format(url=there.url)) as here:
            sides = {"direct": there, "passed on": replace(here, name="passed on", model="there/it")}
            asyncio.run(measured(Report(arguments.rounds), sides, arguments.requests))


if __name__ == "__main__":
    main()
