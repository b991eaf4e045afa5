"""A real daemon shares a real control group with a process that takes ever more of it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import ExitStack, contextmanager

import pytest
from daemon_process import Api, daemon
from memory_group import children_start_in, limited_group

MIB = 1 << 20
LIMIT = 768 * MIB
PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
# takes 16 MiB for each line that it reads
GROW = """
import sys
held = []
for line in sys.stdin:
    held.append(bytearray(b"1") * (16 << 20))
    print(len(held), flush=True)
"""


@pytest.fixture
def group():
    with limited_group(LIMIT) as folder:
        yield folder


@contextmanager
def together(group, folder, models, config):
    """A daemon and a helper in one group."""
    with ExitStack() as stack:
        with children_start_in(group):
            running = stack.enter_context(daemon(folder, models, config))
            helper = stack.enter_context(subprocess.Popen([sys.executable, "-c", GROW], text=True, **PIPES))
        yield running, helper


def grow(helper):
    """Let the helper take 16 MiB more; it has them when this returns."""
    helper.stdin.write("more\n")
    helper.stdin.flush()
    assert helper.stdout.readline(), "the kernel killed the helper first"


async def test_the_daemon_sheds_before_the_kernel_kills_and_serves_again_afterwards(
    group, tmp_path, models_dir, tiny_model
):
    models = models_dir({"alpha": tiny_model})
    config = '[memory]\npoll_interval = "10ms"\n'
    with together(group, tmp_path / "d", models, config) as (running, helper):
        async with Api(running.url) as api:
            await api.text("alpha")
            memory = await api.get("/admin/memory")
            assert (memory["limit"], memory["ceiling_bytes"]) == ("cgroup memory.max", LIMIT - LIMIT // 16)
            while (memory := await api.get("/admin/memory"))["pressure"] == "ok":
                grow(helper)
            assert memory["outside"]["reason"] == "cgroup available"
            assert memory["footprint_bytes"] < memory["ceiling_bytes"] // 2
            await api.until("/admin/models/alpha", lambda model: model["state"] == "unloaded")
            assert helper.poll() is None
            helper.stdin.close()
            await asyncio.to_thread(helper.wait)
            assert await api.text("alpha")
