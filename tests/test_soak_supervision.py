"""Random traffic, operators, reloads and killed processes against a real daemon; every request ends, nothing grows.

MLXD_SOAK_SECONDS says for how long, MLXD_SOAK_SEED which traffic, MLXD_SOAK_REPORT where the report goes.
"""

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import psutil
import pytest
from daemon_process import Api, Daemon, daemon
from feed_reading import follow
from soak_books import Audit, Look, at_rest, growth, look, peak, state_of, table
from soak_daemon import PATIENCE, TEXTS, Variant, soak_models
from soak_operators import Killer, Operator, Reader, Reloads, workers, write_config
from soak_requests import Visitor
from soak_tally import Tally

SECONDS = float(os.environ.get("MLXD_SOAK_SECONDS", "3600"))
SEED = os.environ.get("MLXD_SOAK_SEED", "0")
# Rounds with a rest after each; what is kept on purpose fills up in the first ones, which do not count.
ROUND = max(15.0, SECONDS / 12)
WARM_UP = 2
ROUNDS = max(WARM_UP + 3, round(SECONDS / ROUND))
SAMPLE = 15.0
# What has to have happened, else the run shows nothing.
FORMS = ("short", "long", "n", "stop", "form", "logprobs", "tools", "passing", "vectors", "tokens", "count")
BROUGHT_ABOUT = (
    "worker.died",
    "worker.silent",
    "daemon.reloaded",
    "registry.decision evict",
    "registry.decision restart",
)


@pytest.mark.soak
@pytest.mark.timeout(ROUNDS * (ROUND + 2 * PATIENCE))
async def test_every_request_ends_and_nothing_grows_whatever_is_killed_loaded_and_reloaded(tmp_path, capsys):
    tally, rests, samples, audit = Tally(), [], [], Audit()
    try:
        with daemon(tmp_path / "d", soak_models(tmp_path), Variant().text(None)) as running:
            base = await base_bytes(running)
            for number in range(ROUNDS):
                dice = Random(f"{SEED} {number}")
                samples += await round_of(running, dice, tally, base, audit)
                rests.append(await at_rest(running, tally, audit.seen))
                with capsys.disabled():
                    sys.stdout.write(f"\nround {number}: {rests[-1]}, {len(tally.faults)} faults")
                    sys.stdout.flush()
            killer = Killer(Random(SEED), tally, running.process.pid, audit.signalled, audit.seen)
            await stopped_at_work(running, base, killer)
        audit.read(running.log)
    finally:
        head = f"{SECONDS:.0f} s, seed {SEED}, {ROUNDS} rounds; at most {peak(samples)}"
        with capsys.disabled():
            report(table(tally, rests, audit.counts, head))
    assert tally.faults == []
    assert audit.bad == []
    assert growth(rests[WARM_UP:]) == []
    assert {form for form in FORMS if not tally.served[form]} == set()
    assert {what for what in BROUGHT_ABOUT if not audit.counts[what]} == set()


async def base_bytes(running: Daemon) -> int:
    """What the daemon uses with its libraries and no model."""
    async with Api(running.url) as api:
        await api.text("three")
        await api.call("POST", "/admin/models/three/unload")
        return (await api.get("/admin/memory"))["footprint_bytes"]


async def round_of(running: Daemon, dice: Random, tally: Tally, base: int, audit: Audit) -> list[Look]:
    """Everybody at work at the same time; what a sampler saw meanwhile."""
    end = time.monotonic() + ROUND
    samples: list[Look] = []
    killer = Killer(dice_of(dice), tally, running.process.pid, audit.signalled, audit.seen)
    async with Api(running.url) as api, asyncio.TaskGroup() as group:
        reloads = Reloads(api, dice_of(dice), tally, running, base)
        write_config(running, Variant().text(base))
        for number in range(8):
            visitor = Visitor(api, dice_of(dice), tally, f"v{dice.getrandbits(32):x}-{number}")
            group.create_task(again(visitor.chat if number < 6 else visitor.embed, visitor.dice, 0.4, end))
        for _ in range(2):
            operator, reader = Operator(api, dice_of(dice), tally), Reader(api, dice_of(dice), tally)
            group.create_task(again(operator.act, operator.dice, 3, end))
            group.create_task(again(reader.act, reader.dice, 0.5, end))
        group.create_task(again(reloads.act, reloads.dice, 8, end))
        group.create_task(again(killer.act, killer.dice, 6, end))
        group.create_task(followed(api, end))
        group.create_task(sample(api, running.process.pid, samples, tally, end))
    return samples


async def stopped_at_work(running: Daemon, base: int, killer: Killer) -> None:
    """End the daemon while its models are at work, the process of one of them stopped: in order, and all of it."""
    async with Api(running.url) as api, asyncio.TaskGroup() as group:
        write_config(running, Variant(room=8).text(base))
        assert (await api.call("POST", "/admin/reload"))[0] == 200
        visitor = Visitor(api, killer.dice, killer.tally, "last")
        for model in TEXTS:
            await api.call("POST", f"/admin/models/{model}/load", {"wait": False})
            group.create_task(visitor.until_stopped(model))
        # the third one soon has nothing more to say
        await api.until("/admin/models", lambda answer: sum(one["leases"] for one in answer["data"]) > 1)
        children = workers(running.process.pid)
        killer.signal(children[0], "SIGSTOP")
        assert await asyncio.to_thread(running.stop) == 0
    assert [child for child in children if child.is_running()] == []


def dice_of(dice: Random) -> Random:
    return Random(dice.getrandbits(64))


async def again(act: Callable[[], Awaitable[None]], dice: Random, pause: float, end: float) -> None:
    """Act and think, over and over."""
    while time.monotonic() < end:
        await act()
        await asyncio.sleep(dice.random() * 2 * pause)


async def followed(api: Api, end: float) -> None:
    """Read the feed until then."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(end - time.monotonic()):
            await follow(api)


async def sample(api: Api, pid: int, samples: list[Look], tally: Tally, end: float) -> None:
    """Look now and then. The dead are waited for: none may still be there a moment later."""
    while time.monotonic() < end:
        await asyncio.sleep(min(SAMPLE, ROUND / 4))
        samples.append(await look(api, pid))
        dead = [child for child in workers(pid) if state_of(child) == psutil.STATUS_ZOMBIE]
        await asyncio.sleep(1)
        if left := [child for child in dead if child.is_running()]:
            tally.fault(f"nobody waits for {left}")


def report(text: str) -> None:
    if path := os.environ.get("MLXD_SOAK_REPORT"):
        Path(path).write_text(text)
    sys.stdout.write(f"\n{text}")
