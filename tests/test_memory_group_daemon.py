"""A real daemon in a real control group of 1 GiB: it keeps within the limit, and the kernel has nobody to kill."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from daemon_process import Api, Daemon, daemon
from memory_daemon import EXCESS, SERVED, Watched, big_model, kinds, leave_room, outcomes, wide_model
from memory_group import children_start_in, limited_group
from tiny_models import place_models

MIB = 1 << 20
LIMIT = 1024 * MIB
CEILING = LIMIT - LIMIT // 16
HOG = str(Path(__file__).with_name("outside_hog.py"))
PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
COUNTS = ("memory.events", "memory.oom_control")


@pytest.fixture
def group() -> Iterator[Path]:
    """A group of 1 GiB in which nobody was killed in the end."""
    with limited_group(LIMIT) as folder:
        yield folder
        assert killed(folder) == 0


def killed(group: Path) -> int:
    """How many processes of the group the kernel has killed for want of memory."""
    [counts] = [file.read_text() for name in COUNTS if (file := group / name).exists()]
    return int(re.findall(r"^oom_kill (\d+)$", counts, re.MULTILINE)[0])


@contextmanager
def started(group: Path, folder: Path, models: Path, config: str = "") -> Iterator[Daemon]:
    with ExitStack() as stack:
        with children_start_in(group):
            running = stack.enter_context(daemon(folder, models, config))
        yield running


@pytest.mark.parametrize(
    ("count", "words", "tokens"),
    [
        pytest.param(16, 490, 40, id="long-prompts"),
        pytest.param(24, 490, 600, id="long-prompts-and-answers", marks=pytest.mark.soak),
        pytest.param(24, 1, 2000, id="long-answers", marks=pytest.mark.soak),
    ],
)
async def test_more_at_once_than_the_group_holds_are_served_and_nobody_is_killed(group, tmp_path, count, words, tokens):
    models = place_models(tmp_path / "models", {"a": wide_model()})
    with started(group, tmp_path / "d", models) as running:
        async with Api(running.url) as api:
            await api.text("a")
            memory = await api.get("/admin/memory")
            assert (memory["limit"], memory["ceiling_bytes"]) == ("cgroup memory.max", CEILING)
            wanted = [("a", f"{number} " + "word " * words, tokens) for number in range(count)]
            with Watched(running.process.pid) as watched:
                counts = await outcomes(running.url, wanted)
            print(f"{dict(counts)}, peak {watched.over(CEILING):+.1%}")  # noqa: T201
            assert set(counts) <= {SERVED, *EXCESS}
            assert counts[SERVED] == count, counts
            assert watched.over(CEILING) < 0.05
            # they did take a good part of it: how much depends on how many prompts one step takes
            assert watched.peak > memory["soft_bytes"] // 3
            assert await api.text("a")


async def test_a_prompt_without_room_in_the_group_takes_that_of_an_idle_model(group, tmp_path):
    names = ("idle", "idler")
    models = place_models(tmp_path / "models", {"a": wide_model(), **dict.fromkeys(names, big_model())})
    with started(group, tmp_path / "d", models) as running:
        async with Api(running.url) as api:
            for name in ("idler", "idle", "a"):
                await api.text(name, max_tokens=1)
            await leave_room(running, api, 50 * MIB, "soft = {}\n")
            assert (await api.get("/admin/memory"))["limit"] == "cgroup memory.max"
            assert await api.text("a", "word " * 600)
            [(_, gone, reason)] = await kinds(api, "evict")
            assert (gone in names, reason) == (True, "prefill")
            status, answer = await api.chat("a", "word " * 6000)
            assert (status, answer["error"]["code"]) == (507, "prefill_memory_exceeded"), answer
            assert await api.states() == {"a": "ready", **dict.fromkeys(names, "ready"), gone: "unloaded"}


@pytest.mark.parametrize(
    ("interval", "pace"),
    [pytest.param("500ms", 50, id="the-default-interval"), pytest.param("100ms", 100, marks=pytest.mark.soak)],
)
async def test_idle_models_leave_before_another_process_fills_the_group(group, tmp_path, interval, pace):
    """The hog has taken half of what is free, then it takes `pace` MiB a second, and more than is there beside two idle
    models. Below the limit the daemon keeps a sixteenth of it free, 64 MiB: what is taken between a measurement and the
    end of an unload must be less. At the default interval 50 MiB a second is about the most for which that holds.
    """
    names = ("idle", "idler")
    models = place_models(tmp_path / "models", {"busy": wide_model(), **dict.fromkeys(names, big_model())})
    with started(group, tmp_path / "d", models, f'[memory]\npoll_interval = "{interval}"\n') as running:
        async with Api(running.url) as api:
            for name in names:
                await api.text(name)
            calm = await api.get("/admin/memory")
            async with api.stream("busy", max_tokens=30000, ignore_eos=True) as stream:
                await stream.content.readline()
                with hog(group, pace, (LIMIT - calm["footprint_bytes"]) // MIB) as taking:
                    assert await asyncio.to_thread(taking.stdout.readline), "the kernel killed the hog"
                    await api.until("/admin/models", lambda _: taking.poll() is None)
                    assert await api.states() == {"busy": "ready", "idle": "unloaded", "idler": "unloaded"}
                    short = await api.get("/admin/memory")
                    assert short["outside"]["reason"] == "cgroup available"
                    assert short["soft_bytes"] < calm["soft_bytes"]
                    assert (await api.get("/admin/models/busy"))["engine"]["running"] == 1
                assert {reason for _, _, reason in await kinds(api, "evict")} == {"memory_soft"}
                assert await kinds(api, "abort") == []
                stream.close()
            await api.until("/admin/memory", lambda memory: memory["soft_bytes"] == calm["soft_bytes"])
            for name in names:
                assert await api.text(name)


@contextmanager
def hog(group: Path, pace: int, free: int) -> Iterator[subprocess.Popen[str]]:
    """A process in the group that takes 100 MiB more than are `free`, half of them at once and then so many a second.

    It gives them back in the end.
    """
    with children_start_in(group):
        command = [sys.executable, HOG, str(pace), str(free + 100), str(free // 2)]
        taking = subprocess.Popen(command, text=True, **PIPES)
    with taking:
        yield taking
