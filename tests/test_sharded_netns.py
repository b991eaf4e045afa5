"""Two hosts in network namespaces of their own: a link that is cut is noticed, and only the model ends."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import psutil
import pytest
from daemon_process import Api, daemon, sse
from sharded_harness import TWO, has_ended
from tiny_models import place_models
from worker_harness import until

HERE, THERE = "10.231.0.1", "10.231.0.2"
HANG = 3.0
_links = count(1)
BOUND = 2.0


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@dataclass(frozen=True)
class Link:
    """A pair of interfaces: one here, the other in the namespace, which is the other host."""

    name: str

    @property
    def shell(self) -> str:
        """A remote shell: what it is given is a host, which is this one, and a command."""
        return f"ip netns exec {self.name} sh -c 'exec sh -c \"$1\"'"

    def cut(self) -> None:
        """Nothing comes through any more, and nobody is told."""
        ip("-n", self.name, "link", "set", "there", "down")

    def mend(self) -> None:
        ip("-n", self.name, "link", "set", "there", "up")


@pytest.fixture
def link() -> Iterator[Link]:
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("network namespaces need root and iproute2")
    number = f"{os.getpid() % 10**6}-{next(_links)}"
    name = f"mlxd-{number}"
    made = subprocess.run(["ip", "netns", "add", name], check=False, capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"no network namespace can be made here: {made.stderr.strip()}")
    with ExitStack() as undo:
        undo.callback(ip, "netns", "del", name)
        here = f"mlxd{number}"
        ip("link", "add", here, "type", "veth", "peer", "name", "there", "netns", name)
        # connections that nobody ended keep a namespace, and what is in it, for minutes
        undo.callback(ip, "link", "del", here)
        ip("addr", "add", f"{HERE}/30", "dev", here)
        ip("link", "set", here, "up")
        ip("-n", name, "addr", "add", f"{THERE}/30", "dev", "there")
        ip("-n", name, "link", "set", "there", "up")
        ip("-n", name, "link", "set", "lo", "up")
        yield Link(name)


def config(link: Link) -> str:
    return f"""
[residency]
retry_backoff = "100ms"
[supervision]
hang_timeout = "{HANG}s"
[[model]]
name = "split"
hosts = ["{HERE}", "{THERE}"]
remote_shell = {json.dumps(link.shell)}
remote_python = "{sys.executable}"
"""


def is_reachable() -> bool:
    """Whether the other host says that it listens on no such port."""
    try:
        socket.create_connection((THERE, 9), timeout=1).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return True


async def ranks(api: Api) -> list[psutil.Process]:
    worker = psutil.Process((await api.get("/admin/models/split"))["pid"])
    return [worker, *worker.children(recursive=True)]


@pytest.mark.parametrize("at", ["work", pytest.param("rest", marks=pytest.mark.soak)])
async def test_a_cut_link_is_noticed_and_the_model_serves_again_when_it_is_mended(
    tmp_path: Path, link: Link, at: str
) -> None:
    models = place_models(tmp_path / "models", {"split": TWO.folder, "whole": TWO.folder})
    with daemon(tmp_path / "d", models, config(link)) as running:
        async with Api(running.url) as api:
            wanted = await api.text("whole", max_tokens=16)
            assert await api.text("split", max_tokens=16) == wanted
            processes = await ranks(api)
            if at == "rest":
                link.cut()
            async with api.stream("split", max_tokens=2000, ignore_eos=True) as response:
                if at == "work":
                    await response.content.readline()
                    link.cut()
                cut = time.monotonic()
                answered = response.status
                last = (await sse(response))[-1] if answered == 200 else await response.json()
                took = time.monotonic() - cut
            assert last["error"]["code"] == "engine_crashed"
            assert answered == (200 if at == "work" else 503)
            assert took < HANG + 2 * BOUND
            assert await api.text("whole", max_tokens=16) == wanted
            await until(lambda: all(has_ended(process.pid) for process in processes), within=BOUND)
            # the other host cannot be joined: an error in a bounded time, and not a load for ever
            status, answer = await asyncio.wait_for(api.chat("split", max_tokens=4), 60)
            assert (status, answer["error"]["code"]) == (503, "model_load_failed")
            assert f"cannot reach rank 1 on {THERE}" in answer["error"]["message"]
            link.mend()
            await until(is_reachable)
            await api.until("/admin/models/split", lambda model: model["error"]["retry_at"] <= time.time())
            assert await api.text("split", max_tokens=16) == wanted
