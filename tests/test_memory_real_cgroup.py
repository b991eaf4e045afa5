"""In a real control group with a limit: what others in it use brings the mark down, what they read does not."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager

import pytest
from memory_group import limited_group

MIB = 1 << 20
LIMIT = 512 * MIB
READ_BYTES = 200 * MIB

JOIN = "import os, pathlib, sys\npathlib.Path(sys.argv[1], 'cgroup.procs').write_text(str(os.getpid()))\n"
MEASURE = (
    JOIN
    + """
import json
from mlxd.memory.footprint import MemoryLimits
from mlxd.memory.guard import MemoryGuard
from mlxd.memory.probe import SystemProbe
now = 0.0
guard = MemoryGuard(SystemProbe(), MemoryLimits(450 << 20, 400 << 20, "cgroup memory.max"), lambda: now)
for line in sys.stdin:
    now += float(line)
    footprint = guard.sample().footprint
    told = {"limit": footprint.cgroup_limit, "available": footprint.cgroup_available}
    print(json.dumps({**told, "soft": guard.soft_now, "reason": guard.latest.mark.reason}), flush=True)
"""
)
HOLD = JOIN + "held = bytearray(b'1') * int(sys.argv[2])\nprint(1, flush=True)\ninput()\n"
READ = (
    JOIN
    + """
with open(sys.argv[2], "wb") as file:
    file.write(bytes(int(sys.argv[3])))
    os.fsync(file.fileno())
for _ in range(2):
    read = len(pathlib.Path(sys.argv[2]).read_bytes())
print(read)
"""
)


@contextmanager
def started(script, *arguments):
    command = [sys.executable, "-Ic", script, *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.stdin.close()
            process.wait(60)


@pytest.fixture
def group():
    with limited_group(LIMIT) as folder:
        yield folder


def used(folder):
    [file] = [file for name in ("memory.current", "memory.usage_in_bytes") if (file := folder / name).exists()]
    return int(file.read_text())


def measured(process, after=0.5):
    process.stdin.write(f"{after}\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


def test_what_others_in_the_group_hold_comes_off_the_mark_and_comes_back(group):
    with started(MEASURE, group) as guard:
        before = measured(guard)
        assert (before["limit"], before["soft"], before["reason"]) == (LIMIT, 400 * MIB, "")
        with started(HOLD, group, 250 * MIB) as other:
            assert other.stdout.readline() == "1\n"
            held = measured(guard)
            assert 240 * MIB < before["available"] - held["available"] < 290 * MIB
            assert held["reason"] == "cgroup available"
            assert held["soft"] < 270 * MIB
        assert measured(guard)["soft"] == held["soft"]
        assert measured(guard, 5.5)["soft"] == 400 * MIB


def test_file_pages_that_others_in_the_group_read_are_not_used_up(group, tmp_path):
    with started(MEASURE, group) as guard:
        before = measured(guard)
        with started(READ, group, tmp_path / "weights", READ_BYTES) as other:
            assert other.stdout.readline() == f"{READ_BYTES}\n"
        after = measured(guard)
        assert used(group) > READ_BYTES, "the pages do count against the limit"
        assert before["available"] - after["available"] < 60 * MIB
        assert after["reason"] == ""
