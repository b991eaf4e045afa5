"""A real daemon whose models have processes of their own: whatever becomes of one, the others and the daemon go on."""

import asyncio
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from daemon_faults import hold_load
from daemon_process import MLXD, Api, daemon, sse
from steady_stream import SteadyStream
from tiny_models import place_models
from worker_harness import until

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="loads are held with pipes")

ISOLATED = {"MLXD_ENGINE__ISOLATION": "process"}
ANSWER_TIMEOUT = 3.0
CONFIG = f"""
[supervision]
answer_timeout = "{ANSWER_TIMEOUT}s"
[residency]
retry_backoff = "100ms"
[models]
watch_interval = "never"
[memory]
poll_interval = "50ms"
"""
VICTIM = "/admin/models/victim"
# Seconds within which a request's end follows the signal.
BOUNDS = {signal.SIGKILL: 1.0, signal.SIGSEGV: 1.0, signal.SIGSTOP: ANSWER_TIMEOUT + 2.0}
# What a machine that is busy otherwise may add to them, and to what a stream is without news.
BUSY = 2.0
MB = 1_000_000


@pytest.fixture(scope="module")
def served(tmp_path_factory, tiny_model, micro_model):
    folder = tmp_path_factory.mktemp("workers")
    models = place_models(folder / "models", {"steady": tiny_model, "victim": micro_model})
    with daemon(folder / "d", models, CONFIG, environ=ISOLATED) as running:
        yield running


@pytest.fixture
async def api(served):
    async with Api(served.url) as api:
        yield api


def children(served) -> list[psutil.Process]:
    return psutil.Process(served.process.pid).children(recursive=True)


def scratch(served) -> Path:
    return served.folder / "state" / "scratch"


class Victim:
    """The model that dies, and how long each of its requests was without an answer then."""

    def __init__(self, served, api: Api, number: signal.Signals) -> None:
        self._folder = served.folder.parent / "models" / "victim"
        self._served = served
        self._api = api
        self._number = number
        self.pid = 0
        self.died = 0.0
        self.late: dict[str, float] = {}

    async def dies_loading(self) -> None:
        await self._api.call("POST", f"{VICTIM}/unload", {"mode": "force"})
        held = hold_load(self._folder)
        asking = asyncio.create_task(self._api.chat("victim"))
        with await asyncio.to_thread(held.open, "w"):  # once the load reads it
            await self._die()
            status, answer = await self._end("load", asking)
        held.unlink()
        held.write_text("{}")
        error = answer["error"]
        assert (status, error["code"], error["details"]["reason"]) == (503, "model_load_failed", "crashed"), error

    async def dies_unloading(self) -> None:
        pid = await self._pid()
        os.kill(pid, signal.SIGSTOP)  # so that it cannot have unloaded by the time that it dies
        unloading = asyncio.create_task(self._api.call("POST", f"{VICTIM}/unload", {}))
        await self._api.until(VICTIM, lambda model: model["state"] == "unloading")
        await self._die()
        os.kill(pid, signal.SIGCONT if self._number == signal.SIGSEGV else 0)
        status, answer = await self._end("unload", unloading)
        assert (status, answer["state"]) == (200, "unloaded"), answer

    async def dies_prefilling(self) -> None:
        asking = asyncio.create_task(self._api.chat("victim", "word " * 8000))
        await self._api.until("/admin/requests", is_prefilling)
        await self._die()
        status, answer = await self._end("prefill", asking)
        assert (status, answer["error"]["code"]) == (503, "engine_crashed"), answer

    async def dies_decoding(self) -> None:
        async with self._api.stream("victim", max_tokens=30000, ignore_eos=True) as stream:
            assert stream.status == 200, await stream.text()
            await stream.content.readuntil(b"data: {")
            reading = asyncio.create_task(sse(stream))
            await self._die()
            events = await self._end("decode", reading)
        assert events[-1]["error"]["code"] == "engine_crashed", events[-1]

    async def _pid(self) -> int:
        return (await self._api.get(VICTIM))["pid"]

    async def _die(self) -> None:
        self.pid = await self._pid()
        os.kill(self.pid, self._number)
        self.died = time.monotonic()

    async def _end(self, phase: str, asked: asyncio.Task) -> object:
        """Its outcome; nothing of the process is left then, and the daemon is as well as before."""
        async with asyncio.timeout(30):
            answer = await asked
        self.late[phase] = time.monotonic() - self.died
        await self._api.until(VICTIM, lambda model: model["state"] in ("failed", "unloaded"))
        assert not psutil.pid_exists(self.pid)
        assert list(scratch(self._served).iterdir()) == []
        for path in ("/health", "/health/ready"):
            await self._api.get(path)
        return answer


def is_prefilling(answer) -> bool:
    return any((one["model"], one["state"]) == ("victim", "prefilling") for one in answer["data"])


@pytest.mark.parametrize(
    "number",
    [pytest.param(number, id=number.name, marks=[pytest.mark.soak] * (number == signal.SIGSEGV)) for number in BOUNDS],
)
async def test_a_death_at_any_moment_ends_the_models_own_requests_and_holds_up_no_others(served, api, number):
    victim = Victim(served, api, number)
    async with SteadyStream(api, "steady") as steady:
        normal = await steady.normal()
        told, most = [f"alone {normal}"], 2 * normal.longest + BUSY
        for dies in (victim.dies_loading, victim.dies_unloading, victim.dies_prefilling, victim.dies_decoding):
            await dies()
            [(phase, late)] = list(victim.late.items())[-1:]
            beside = steady.gaps(victim.died, victim.died + late)
            told.append(f"{phase} ended after {late:.2f} s, beside it {beside}")
            assert late < BOUNDS[number] + BUSY, told
            began = time.monotonic()
            # a death in a load backs off at once, and an operator's load forgets it
            if dies == victim.dies_loading:
                shown = await api.get(VICTIM)
                assert (shown["state"], shown["pid"], shown["error"]["reason"]) == ("failed", None, "crashed")
                assert shown["error"]["retry_at"] is not None
                status, shown = await api.call("POST", f"{VICTIM}/load", {})
                assert (status, shown["state"], shown["error"]) == (200, "ready", None)
                text = await api.text("victim")
            elif dies == victim.dies_prefilling:
                assert await api.text("victim") == text
            reload = steady.gaps(began)
            told += [f"reload {reload}"] * (len(reload.seconds) > 1)
            assert max(beside.longest, reload.longest) < most, told
    print(number.name, *told, sep="\n  ")  # noqa: T201
    assert [one.pid for one in children(served)] == [(await api.get("/admin/models/steady"))["pid"]]


async def test_a_model_that_dies_again_and_again_has_failed_until_an_operator_loads_it(served, api):
    await api.call("POST", f"{VICTIM}/unload", {"mode": "force"})
    for deaths in range(1, 6):
        await api.call("POST", f"{VICTIM}/load", {}) if deaths == 1 else await api.text("victim")
        os.kill((await api.get(VICTIM))["pid"], signal.SIGKILL)
        shown = await api.until(VICTIM, lambda model: model["state"] == "failed")
        assert (shown["error"]["reason"], shown["error"]["attempts"]) == ("crashed", deaths)
        if deaths < 5:
            await api.until("/admin/explain/victim", lambda plan: plan["verdict"] == "loads")
    assert shown["error"]["retry_at"] - time.time() > 250
    status, answer = await api.chat("victim")
    error = answer["error"]
    assert (status, error["code"], error["details"]["reason"]) == (503, "model_load_failed", "crashed")
    assert (await api.get("/admin/explain/victim"))["verdict"] == "backing_off"
    await api.get("/health/ready")
    assert loaded_by_hand(served)["state"] == "ready"
    assert await api.text("victim")


def loaded_by_hand(served) -> dict:
    """`mlxd load`, and what `mlxd show` says then."""
    subprocess.run([MLXD, "load", "victim", "--url", served.url], check=True, capture_output=True)
    command = [MLXD, "show", "victim", "--url", served.url]
    shown = json.loads(subprocess.run([*command, "--json"], check=True, capture_output=True).stdout)
    page = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert f"process (process {shown['pid']})" in page
    return shown


async def test_a_model_shows_its_process_and_an_unload_gives_all_of_its_memory_back(served, api):
    await api.call("POST", f"{VICTIM}/unload", {})
    before = await api.get("/admin/memory")
    status, shown = await api.call("POST", f"{VICTIM}/load", {})
    assert (status, shown["isolation"]) == (200, "process")
    listed = {model["id"]: model["pid"] for model in (await api.get("/admin/models"))["data"]}
    assert listed["victim"] == shown["pid"]
    worker = psutil.Process(shown["pid"])
    assert worker.cmdline()[0].startswith("mlxd: victim")
    await api.text("victim", "word " * 500)
    taken = await api.until("/admin/memory", lambda now: now["footprint_bytes"] > before["footprint_bytes"] + 50 * MB)
    assert worker.memory_info().rss > shown["weight_bytes"]
    status, _ = await api.call("POST", f"{VICTIM}/unload", {})
    assert status == 200
    assert not psutil.pid_exists(shown["pid"])
    after = await api.until("/admin/memory", lambda now: now["footprint_bytes"] < before["footprint_bytes"] + 5 * MB)
    figures = [memory["footprint_bytes"] // 1000 for memory in (before, taken, after)]
    print("footprint before, with the model and after it:", figures, "kB")  # noqa: T201


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="the kernel does not say what is loaded")
async def test_mlx_is_in_workers_alone(served, api):
    await api.text("steady")
    worker = (await api.get("/admin/models/steady"))["pid"]
    assert (has_mlx(served.process.pid), has_mlx(worker)) == (False, True)


def has_mlx(pid: int) -> bool:
    return "libmlx" in Path(f"/proc/{pid}/maps").read_text()


def is_dead(process: psutil.Process) -> bool:
    """Nobody waits for an orphan in a container without an init."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def test_a_killed_daemon_leaves_no_process_and_nothing_that_harms_the_next(tmp_path, models_dir, micro_model):
    models = models_dir(dict.fromkeys(("at-work", "stopped", "loading"), micro_model))
    held = hold_load(models / "loading")
    with daemon(tmp_path / "d", models, CONFIG, environ=ISOLATED, exit_code=None) as running:
        async with Api(running.url) as api:
            text = await api.text("stopped")
            async with api.stream("at-work", max_tokens=30000) as at_work:
                await at_work.content.readline()
                loading = asyncio.create_task(api.chat("loading"))
                with await asyncio.to_thread(held.open, "w"):
                    workers = children(running)
                    assert len(workers) == 3
                    os.kill((await api.get("/admin/models/stopped"))["pid"], signal.SIGSTOP)
                    (scratch(running) / "left").mkdir()
                    running.process.kill()
                    killed = time.monotonic()
                    await until(lambda: all(map(is_dead, workers)), within=2 + BUSY)
                    print(f"gone after {time.monotonic() - killed:.2f} s")  # noqa: T201
                await asyncio.gather(loading, return_exceptions=True)
    held.unlink()
    with daemon(tmp_path / "d", models, CONFIG, environ=ISOLATED) as running:
        assert list(scratch(running).iterdir()) == []
        async with Api(running.url) as api:
            assert await api.text("stopped") == text
            await api.get("/health/ready")
        left = children(running)
        assert running.stop() == 0
    assert not any(one.is_running() for one in left)
