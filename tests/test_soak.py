"""Random traffic, cancels and admin calls against a real daemon for MLXD_SOAK_SECONDS; then the books must balance."""

import asyncio
import os
import random
import sys
import time

import psutil
import pytest
from daemon_process import Api, daemon
from feed_reading import follow

SECONDS = float(os.environ.get("MLXD_SOAK_SECONDS", "600"))
NAMES = ("one", "two", "three", "four")
# A request ends within its wait for a model and its answer, a drain, or a load that is in its way.
PATIENCE = 120.0
CONFIG = '[residency]\nmax_loaded = 2\nmax_wait = "1s"\nqueue_timeout = "60s"\n'
# What a busy daemon may answer.
ANSWERS = (200, 429, 503)


@pytest.mark.soak
async def test_random_swaps_leave_nothing_behind(tmp_path, models_dir, tiny_model, other_tiny_model):
    models = models_dir(dict(zip(NAMES, (tiny_model, other_tiny_model) * 2, strict=True)))
    with daemon(tmp_path / "d", models, CONFIG) as running:
        async with Api(running.url) as api:
            # what is kept on purpose, and bounded, fills up: decisions, events, the allocator's pools
            await traffic(api, running.url, SECONDS / 5)
            before = await books(api, running.process.pid)
            counts = await traffic(api, running.url, SECONDS)
            after = await books(api, running.process.pid)
            loads = sum(1 for event in running.events() if event.get("event") == "model.loaded")
            sys.stderr.write(f"{sum(counts)} acts, {loads} loads, {SECONDS:.0f} s: {before} -> {after}\n")
            assert loads >= SECONDS / 3
            models_now = (await api.get("/admin/models"))["data"]
            assert [(model["leases"], model["queued"], model["resident_bytes"]) for model in models_now] == [
                (0, 0, 0)
            ] * len(NAMES)
            assert after["threads"] <= before["threads"] + 2
            assert after["files"] <= before["files"] + 4
            assert after["footprint"] <= before["footprint"] * 1.05


async def traffic(api: Api, url: str, seconds: float) -> list[int]:
    """Eight visitors and a reader of the feed; how many acts each visitor did."""
    end = time.monotonic() + seconds
    async with Api(url) as visitors, asyncio.TaskGroup() as feed:
        reader = feed.create_task(follow(visitors))
        counts = await asyncio.gather(*[visitor(visitors, random.Random(seed), end) for seed in range(8)])
        reader.cancel()
    assert all(count > 0 for count in counts)
    await api.until("/admin/requests", lambda answer: answer["data"] == [])
    return counts


async def books(api: Api, pid: int) -> dict[str, int]:
    """What the daemon holds with no model in memory, after each has been there."""
    for name in NAMES:
        await api.text(name)
    for name in NAMES:
        await api.call("POST", f"/admin/models/{name}/unload")
        await api.call("PATCH", f"/admin/models/{name}", {"pinned": False, "ttl": None})
    memory = await api.get("/admin/memory")
    assert (memory["parts"]["weights"], memory["parts"]["kv"], memory["parts"]["prefix_cache"]) == (0, 0, 0)
    process = psutil.Process(pid)
    return {"footprint": memory["footprint_bytes"], "threads": process.num_threads(), "files": process.num_fds()}


async def visitor(api: Api, dice: random.Random, end: float) -> int:
    """Chats, leaves, cancels, loads, unloads, pins and reloads at random; how many acts it did."""
    acts = 0
    while time.monotonic() < end:
        async with asyncio.timeout(PATIENCE):
            await act(api, dice, dice.choice(NAMES))
        acts += 1
    return acts


async def act(api: Api, dice: random.Random, name: str) -> None:
    model = f"/admin/models/{name}"
    match dice.random():
        case chance if chance < 0.5:
            status, answer = await api.chat(name, f"q{dice.random()}", max_tokens=dice.randint(1, 60))
            assert status in ANSWERS, answer
        case chance if chance < 0.78:
            await leave_early(api, name, dice)
        case chance if chance < 0.86:
            await api.call("POST", f"{model}/unload", {"mode": dice.choice(["drain", "force"])})
        case chance if chance < 0.90:
            await api.call("POST", f"{model}/load", {"wait": False})
        case chance if chance < 0.93:
            await api.call("DELETE", f"{model}/load")
        case chance if chance < 0.95:
            await api.call("PATCH", model, {"ttl": dice.choice(["1s", "never"])})
        case chance if chance < 0.97:
            await api.call("PATCH", model, {"pinned": True})
            await api.call("PATCH", model, {"pinned": False})
        case chance if chance < 0.985:
            assert (await api.call("POST", "/admin/reload"))[0] == 200
        case _:
            assert (await api.get(f"/admin/explain/{name}"))["model"] == name


async def leave_early(api: Api, name: str, dice: random.Random) -> None:
    async with api.stream(name, "stay", max_tokens=300) as response:
        for _ in range(dice.randint(0, 20)):
            if not await response.content.readline():
                return
        response.close()
