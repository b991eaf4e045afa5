"""A SIGHUP that comes during the start of the daemon does not end it."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from daemon_process import EXIT_TIMEOUT, MLXD, START_TIMEOUT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def ignores_hangups(pid: int) -> bool:
    found = re.search(r"^SigIgn:\s*([0-9a-f]+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return bool(int(found[1], 16) >> (signal.SIGHUP - 1) & 1)


def hang_up_until_ready(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Send SIGHUP as long as it is ignored; how often, and the first line of the output."""
    assert process.stdout is not None
    sent, end = 0, time.monotonic() + START_TIMEOUT
    while not select.select([process.stdout], [], [], 0.01)[0]:
        assert time.monotonic() < end
        if ignores_hangups(process.pid):
            process.send_signal(signal.SIGHUP)
            sent += 1
    return sent, process.stdout.readline()


def test_a_hangup_during_the_start_and_the_second_one_for_a_blas_ends_nothing(tmp_path):
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("MLXD_", "LD_PRELOAD"))}
    environ |= {"HOME": str(tmp_path), "MLXD_SERVER__STATE_DIR": str(tmp_path / "state"), "MLXD_SERVER__PORT": "0"}
    with subprocess.Popen(
        [MLXD, "serve"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ
    ) as process:
        try:
            sent, line = hang_up_until_ready(process)
            assert line.startswith("mlxd ready on ")
            assert sent
            process.terminate()
            _, errors = process.communicate(timeout=EXIT_TIMEOUT)
            assert process.returncode == 0
            assert "Traceback" not in errors
        finally:
            process.kill()
