"""Clients that leave at any moment, and operators that race each other: afterwards the books balance."""

import asyncio
import random

import psutil
from daemon_process import Api, daemon, sse


async def test_clients_that_leave_at_random_moments_leave_nothing_behind(tmp_path, models_dir, tiny_model, micro_model):
    models = models_dir({"one": tiny_model, "two": micro_model})
    with daemon(tmp_path / "d", models, "[residency]\nmax_loaded = 1\n") as running:
        async with Api(running.url) as api:
            for name in ("one", "two"):
                await api.text(name)
            process = psutil.Process(running.process.pid)
            threads, files = process.num_threads(), process.num_fds()
            dice = random.Random(5)
            await asyncio.gather(*[leave(api, dice.choice(("one", "two")), dice.uniform(0, 0.5)) for _ in range(120)])
            await api.until("/admin/requests", lambda answer: answer["data"] == [])
            # an abort is seen at the engine's next step
            await api.until("/admin/models", lambda answer: all(map(is_idle, answer["data"])))
            assert await api.text("one")
        await asyncio.to_thread(settle, process, files + 4)
        assert process.num_threads() <= threads + 2


def is_idle(model: dict) -> bool:
    engine = model["engine"] or {"running": 0, "waiting": 0}
    return not (model["leases"] or model["queued"] or engine["running"] or engine["waiting"])


async def leave(api: Api, model: str, seconds: float) -> None:
    """Ask for a long answer, streamed or not, and go after a while: in the queue, the prompt, or the answer."""
    asking = read_stream(api, model) if seconds < 0.25 else api.chat(model, "word " * 200, max_tokens=2000)
    task = asyncio.create_task(asking)
    await asyncio.wait({task}, timeout=seconds)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def read_stream(api: Api, model: str) -> None:
    async with api.stream(model, "word " * 200, max_tokens=2000) as response:
        await sse(response)


def settle(process: psutil.Process, files: int) -> None:
    """Wait until the sockets of those who left are closed."""
    while process.num_fds() > files:
        assert process.is_running()


async def test_operators_that_race_each_other_and_traffic_leave_the_daemon_serving(tmp_path, models_dir, tiny_model):
    names = ("one", "two", "three")
    with daemon(
        tmp_path / "d", models_dir(dict.fromkeys(names, tiny_model)), "[residency]\nmax_loaded = 2\n"
    ) as running:
        async with Api(running.url) as api:
            dice = random.Random(7)
            await asyncio.gather(*[act(api, dice.choice(names), dice.random()) for _ in range(120)])
            await api.until("/admin/requests", lambda answer: answer["data"] == [])
            for name in names:
                await api.call("PATCH", f"/admin/models/{name}", {"pinned": False, "ttl": None})
            for name in names:
                assert await api.text(name)


async def act(api: Api, name: str, chance: float) -> None:
    """One admin call or chat; whatever its outcome, it is a documented one."""
    path = f"/admin/models/{name}"
    match chance:
        case chance if chance < 0.3:
            status, _ = await api.chat(name, max_tokens=20)
        case chance if chance < 0.45:
            status, _ = await api.call("POST", f"{path}/load", {"wait": False, "pin": chance < 0.32})
        case chance if chance < 0.6:
            status, _ = await api.call("POST", f"{path}/unload", {"mode": "force" if chance < 0.5 else "drain"})
        case chance if chance < 0.7:
            status, _ = await api.call("DELETE", f"{path}/load")
        case chance if chance < 0.8:
            status, _ = await api.call("PATCH", path, {"ttl": "0s"})
        case chance if chance < 0.9:
            status, _ = await api.call("POST", "/admin/unload")
        case _:
            status, _ = await api.call("POST", "/admin/abort")
    assert status in (200, 202, 409, 503, 507), status
