"""The lock of the state directory: it goes with its process, and who has it is told as it is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from daemon_process import MLXD, daemon

from mlxd.daemon.state_dir import LOCK_FILE, StateDir, StateDirBusy

# takes the lock, leaves a child that has inherited it, and is gone
LEAVES_A_CHILD = """
import os, sys
from pathlib import Path
from mlxd.daemon.state_dir import StateDir
state = StateDir(Path(sys.argv[1])).__enter__()
if os.fork():
    print(os.getpid(), flush=True)
    os._exit(0)
sys.stdin.read()
"""


@pytest.fixture
def models(tmp_path):
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


def test_who_has_the_lock_is_named(tmp_path):
    with StateDir(tmp_path), pytest.raises(StateDirBusy, match=rf"another mlxd \(process {os.getpid()}\) already runs"):
        StateDir(tmp_path).__enter__()


@pytest.mark.parametrize("left", ["999999999", "99999999999999999999999", "garbage", "", "\0"])
def test_a_lock_file_that_nobody_holds_is_taken_whatever_is_in_it(tmp_path, left):
    (tmp_path / LOCK_FILE).write_text(left)
    with StateDir(tmp_path):
        assert (tmp_path / LOCK_FILE).read_text() == str(os.getpid())


def test_a_lock_that_outlives_the_process_it_names_is_told_as_such(tmp_path):
    command = [sys.executable, "-c", LEAVES_A_CHILD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        owner = process.stdout.readline().strip()
        assert process.wait(30) == 0
        with pytest.raises(StateDirBusy, match=rf"not by process {owner} that it names: that one is gone.*lsof"):
            StateDir(tmp_path).__enter__()
        process.stdin.close()  # which ends the child
        assert process.stdout.read() == ""
    with StateDir(tmp_path):
        pass


def test_a_killed_daemon_leaves_nothing_that_keeps_the_next_one_from_starting(tmp_path, models):
    config = f'[server]\nunix_socket = "{tmp_path / "socket"}"\n'
    with daemon(tmp_path / "d", models, config, exit_code=None) as running:
        assert running.stop(signal.SIGKILL) == -signal.SIGKILL
        lock = tmp_path / "d" / "state" / LOCK_FILE
        assert lock.read_text() == str(running.process.pid)
        assert (tmp_path / "socket").is_socket()
    with daemon(tmp_path / "d", models, config) as again:
        assert lock.read_text() == str(again.process.pid)
        environ = os.environ | {"MLXD_SERVER__STATE_DIR": str(lock.parent), "MLXD_MODELS__HF_CACHE": "false"}
        second = subprocess.run(
            [MLXD, "serve", "--port", "0"], capture_output=True, text=True, env=environ, timeout=60, check=False
        )
        assert second.returncode == 75
        assert f"another mlxd (process {again.process.pid})" in second.stderr
