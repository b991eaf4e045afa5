"""A real daemon with a model on several ranks: asked, listed, counted, killed and loaded again like any other."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import time

import psutil
import pytest
from cli_process import mlxd
from daemon_process import MLXD, Api, daemon, sse
from sharded_harness import TWO, has_ended, listening, ports_of, tells_of
from tiny_models import place_models
from worker_harness import until

SPLIT = "/admin/models/split"
BOUND = 2.0
CONFIG = """
[residency]
retry_backoff = "100ms"
[supervision]
answer_timeout = "3s"
hang_timeout = "3s"
[models]
watch_interval = "never"
[[model]]
name = "split"
hosts = ["localhost", "localhost"]
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sharded")
    models = place_models(folder / "models", {"split": TWO.folder, "whole": TWO.folder})
    with daemon(folder / "d", models, CONFIG) as running:
        yield running


@pytest.fixture
async def api(served):
    async with Api(served.url) as api:
        yield api


async def ranks(api: Api) -> list[psutil.Process]:
    """All processes of the model, rank 0 first."""
    pid = (await api.get(SPLIT))["pid"]
    worker = psutil.Process(pid)
    return [worker, *worker.children()]


async def test_it_answers_like_the_model_of_one_process(api):
    asked = [{"text": f"question {number}", "max_tokens": 24} for number in range(4)]
    whole = [await api.text("whole", **each) for each in asked]
    assert await asyncio.gather(*[api.text("split", **each) for each in asked]) == whole
    seeded = {"temperature": 1.0, "seed": 3, "max_tokens": 24}
    assert await api.text("split", **seeded) == await api.text("whole", **seeded)
    guided = {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "boolean"}}}}
    assert json.loads(await api.text("split", **guided)) in (True, False)


async def test_it_is_shown_with_its_hosts_and_counted_whole(api, served):
    await api.text("split", max_tokens=1)
    split, whole = await api.get(SPLIT), await api.get("/admin/models/whole")
    assert split["hosts"] == ["localhost", "localhost"]
    assert "hosts" not in whole
    assert split["isolation"] == "process"
    # both ranks are here: what is split is there once, and embeddings and norms twice
    assert split["weight_bytes"] == whole["weight_bytes"] < split["resident_bytes"] < 2 * whole["weight_bytes"]
    shown = await asyncio.to_thread(mlxd, "show", "split", "--url", served.url, home=served.folder)
    assert b"localhost, localhost" in shown.stdout
    before = (await api.get("/admin/memory"))["footprint_bytes"]
    size = sum(rank.memory_info().rss for rank in await ranks(api))
    await api.call("POST", f"{SPLIT}/unload")
    await api.until("/admin/memory", lambda memory: memory["footprint_bytes"] < before - size // 3)


async def test_an_unload_leaves_no_process_and_no_port(api):
    await api.text("split", max_tokens=1)
    processes = await ranks(api)
    ports = ports_of(processes)
    assert len(processes) == 2
    status, _ = await api.call("POST", f"{SPLIT}/unload")
    assert status == 200
    await until(lambda: all(has_ended(process.pid) for process in processes))
    assert not listening(ports)


@pytest.mark.parametrize("rank", [0, 1])
async def test_a_killed_rank_is_a_typed_error_and_the_next_request_is_served(api, served, rank):
    await api.text("split", max_tokens=1)
    processes = await ranks(api)
    async with api.stream("whole", max_tokens=300, ignore_eos=True) as other:
        async with api.stream("split", f"kill {rank}", max_tokens=2000, ignore_eos=True) as response:
            await response.content.readline()
            processes[rank].send_signal(signal.SIGKILL)
            killed = time.monotonic()
            events = await sse(response)
            assert time.monotonic() - killed < BOUND
        assert events[-1]["error"]["code"] == "engine_crashed"
        told = [event["message"] for event in served.events() if event["event"] == "worker.died"]
        assert tells_of(rank, told[-1])
        assert (await sse(other))[-1] == "[DONE]"
    await until(lambda: all(has_ended(process.pid) for process in processes))
    # one that died before is held back for a moment
    await api.until(SPLIT, lambda model: model["error"] is None or model["error"]["retry_at"] <= time.time())
    assert await api.text("split", max_tokens=8)


async def test_a_rank_that_stops_in_the_middle_is_noticed(api):
    await api.text("split", max_tokens=1)
    processes = await ranks(api)
    async with api.stream("split", "stop", max_tokens=2000, ignore_eos=True) as response:
        await response.content.readline()
        processes[1].send_signal(signal.SIGSTOP)
        stopped = time.monotonic()
        events = await sse(response)
        assert time.monotonic() - stopped < 3 + 2 * BOUND
    assert events[-1]["error"]["code"] == "engine_crashed"
    await until(lambda: all(has_ended(process.pid) for process in processes))
    # one that died before is held back for a moment
    await api.until(SPLIT, lambda model: model["error"] is None or model["error"]["retry_at"] <= time.time())
    assert await api.text("split", max_tokens=8)


async def test_ranks_end_with_a_daemon_that_is_killed(tmp_path):
    models = place_models(tmp_path / "models", {"split": TWO.folder})
    with daemon(tmp_path / "d", models, CONFIG, exit_code=-signal.SIGKILL) as running:
        async with Api(running.url) as api:
            await api.text("split", max_tokens=1)
            processes = await ranks(api)
        running.process.kill()
        await until(lambda: all(has_ended(process.pid) for process in processes), within=BOUND)


@pytest.mark.parametrize(
    ("keys", "key", "words"),
    [
        ('hosts = ["localhost"]', "hosts", "expected 2 hosts or more, got 1"),
        ('hosts = ["10.255.0.1", "localhost"]', "hosts", "expected this machine first"),
        ('sharding = "pipeline"', "sharding", "expected only beside hosts or hostfile"),
        ('hosts = ["localhost", "b"]\nhostfile = "/x"', "hostfile", "either hosts or hostfile"),
        ('hostfile = "/nowhere/hosts.json"', "hostfile", "No such file or directory: /nowhere/hosts.json"),
        ('hosts = ["localhost", "b"]\nbackend = "mpi"', "backend", 'expected "ring", "jaccl" or "nccl", got "mpi"'),
        ('hosts = ["localhost", "b"]\nbackend = "jaccl"', "hosts", "an rdma list for each host"),
        ('hosts = ["localhost", "b"]\nengine = { isolation = "thread" }', "hosts", "engine.isolation"),
        ('hosts = ["localhost", "b"]\nadapters = { law = "/law" }', "hosts", "adapters cannot be split"),
        ('hosts = ["localhost", "b"]\nremote_shell = "ssh \'x"', "remote_shell", "to which a host is added"),
    ],
)
def test_what_cannot_be_followed_is_told_at_the_start(tmp_path, keys, key, words):
    models = place_models(tmp_path / "models", {"split": TWO.folder})
    config = tmp_path / "mlxd.toml"
    config.write_text(f'[[model]]\nname = "split"\n{keys}\n')
    command = [MLXD, "serve", "--config", str(config), "--port", "0", "--models-dir", str(models)]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert ended.returncode != 0
    assert f"model.split.{key}" in ended.stderr
    assert words in ended.stderr


def test_a_hostfile_of_mlx_launch_is_read(tmp_path):
    file = tmp_path / "hosts.json"
    hosts = [{"ssh": "localhost", "ips": ["127.0.0.1"]}, {"ssh": "localhost", "ips": ["127.0.0.1"], "rdma": []}]
    file.write_text(json.dumps({"backend": "ring", "envs": ["SAID=yes"], "hosts": hosts}))
    models = place_models(tmp_path / "models", {"split": TWO.folder})

    async def ask(url: str) -> None:
        async with Api(url) as api:
            assert await api.text("split", max_tokens=3)
            for process in await ranks(api):
                assert process.environ().get("SAID") in (None, "yes")
            assert (await api.get("/admin/config"))["model"][0]["hostfile"] == str(file)

    with daemon(tmp_path / "d", models, f'[[model]]\nname = "split"\nhostfile = "{file}"\n') as running:
        asyncio.run(ask(running.url))
