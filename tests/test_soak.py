"""Random traffic, cancels and admin calls against a real daemon for MLXD_SOAK_SECONDS; then the books must balance."""

import asyncio
import os
import random
import time

import psutil
import pytest
from daemon_process import Api, daemon

SECONDS = float(os.environ.get("MLXD_SOAK_SECONDS", "300"))
NAMES = ("one", "two", "three", "four")


@pytest.mark.soak
async def test_random_swaps_leave_nothing_behind(tmp_path, models_dir, tiny_model, other_tiny_model):
    models = models_dir(dict(zip(NAMES, (tiny_model, other_tiny_model) * 2, strict=True)))
    config = '[residency]\nmax_loaded = 2\nmax_wait = "1s"\nqueue_timeout = "60s"\n'
    with daemon(tmp_path / "d", models, config) as running:
        async with Api(running.url) as api:
            for name in NAMES:
                await api.text(name)
            before = await books(api, running.process.pid)
            end = time.monotonic() + SECONDS
            counts = await asyncio.gather(*[visitor(api, random.Random(seed), end) for seed in range(8)])
            assert all(count > 0 for count in counts)
            await api.until("/admin/requests", lambda answer: answer["data"] == [])
            for name in NAMES:
                await api.text(name)
            after = await books(api, running.process.pid)
            models_now = (await api.get("/admin/models"))["data"]
            assert [(model["leases"], model["queued"]) for model in models_now] == [(0, 0)] * len(NAMES)
            assert after["threads"] <= before["threads"] + 2
            assert after["files"] <= before["files"] + 4
            assert after["footprint"] <= before["footprint"] * 1.05 + 30_000_000


async def books(api: Api, pid: int) -> dict[str, int]:
    memory = await api.get("/admin/memory")
    process = psutil.Process(pid)
    return {
        "footprint": memory["footprint_bytes"],
        "threads": process.num_threads(),
        "files": process.num_fds(),
    }


async def visitor(api: Api, dice: random.Random, end: float) -> int:
    """Chats, leaves, cancels, loads and unloads at random; how many acts it did."""
    acts = 0
    while time.monotonic() < end:
        name = dice.choice(NAMES)
        match dice.random():
            case chance if chance < 0.5:
                status, answer = await api.chat(name, f"q{dice.random()}", max_tokens=dice.randint(1, 60))
                assert status in (200, 503, 429), answer
            case chance if chance < 0.8:
                async with asyncio.timeout(120):
                    await leave_early(api, name, dice)
            case chance if chance < 0.9:
                await api.call("POST", f"/admin/models/{name}/unload", {"mode": dice.choice(["drain", "force"])})
            case chance if chance < 0.95:
                await api.call("POST", f"/admin/models/{name}/load", {"wait": False})
            case _:
                await api.call("DELETE", f"/admin/models/{name}/load")
        acts += 1
    return acts


async def leave_early(api: Api, name: str, dice: random.Random) -> None:
    async with api.stream(name, "stay", max_tokens=300) as response:
        for _ in range(dice.randint(0, 20)):
            if not await response.content.readline():
                return
        response.close()
