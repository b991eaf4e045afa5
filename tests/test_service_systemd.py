"""The service under a real systemd of its own: what `mlxd service` does, and what systemd makes of the daemon."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import time
import urllib.request
from pathlib import Path

import pytest
from private_systemd import PrivateSystemd, private_systemd

UNIT = "mlxd.service"
DEADLINE = 30.0


@pytest.fixture(scope="module")
def systemd(tmp_path_factory):
    with private_systemd(tmp_path_factory.mktemp("home")) as running:
        yield running


@pytest.fixture
def user(systemd):
    """A user without any service, whose daemon has a free port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    made = User(systemd, port)
    made.configure()
    yield made
    made.service("uninstall")
    shutil.rmtree(made.overrides, ignore_errors=True)


class User:
    """Someone at a shell."""

    def __init__(self, systemd: PrivateSystemd, port: int) -> None:
        self.systemd = systemd
        self.port = port
        self.config = systemd.home / ".config" / "mlxd" / "mlxd.toml"
        self.file = systemd.home / ".config" / "systemd" / "user" / UNIT
        self.overrides = self.file.with_name(f"{UNIT}.d")

    def configure(self, more: str = "") -> None:
        self.config.parent.mkdir(parents=True, exist_ok=True)
        text = f'[server]\nport = {self.port}\n[models]\nhf_cache = false\n[engine]\nblas = "off"\n{more}'
        self.config.write_text(text)

    def service(self, *words: str, code: int = 0, **extra: str) -> str:
        """Run `mlxd service` with these words; all that it says."""
        done = self.systemd.mlxd("service", *words, **extra)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    def status(self, code: int = 0) -> dict:
        return json.loads(self.service("status", "--json", code=code))

    def settings(self, text: str) -> None:
        """Settings of the unit that an install leaves alone."""
        self.overrides.mkdir(parents=True)
        (self.overrides / "test.conf").write_text(f"[Service]\n{text}\n")
        self.systemd.systemctl("daemon-reload")

    def reload(self, more: str, model: str) -> None:
        """Have systemd reload a configuration with a model, and wait until the daemon knows it."""
        self.configure(more)
        self.systemd.systemctl("reload", UNIT)
        end = time.monotonic() + DEADLINE
        while model not in models(self.port):
            assert time.monotonic() < end

    def until_process_is_another_than(self, pid: int) -> int:
        """Wait until systemd has started a daemon anew that serves; its process."""
        end = time.monotonic() + DEADLINE
        while (now := int(self.systemd.shown("MainPID"))) in (0, pid) or self.systemd.shown("ActiveState") != "active":
            assert time.monotonic() < end
        return now


def test_the_service_is_installed_used_and_removed(user):
    assert "not installed" in user.service("status", code=1)
    said = user.service("install")
    assert f"wrote {user.file}" in said
    status = user.status()
    health = status.pop("health")
    assert (health["status"], health["pid"]) == ("ok", status["pid"])
    assert status == {
        "manager": "systemd",
        "file": str(user.file),
        "installed": True,
        "enabled": True,
        "running": True,
        "pid": health["pid"],
        "last_exit": None,
        "trouble": None,
        "url": f"http://127.0.0.1:{user.port}",
    }
    assert user.systemd.shown("StatusText") == f"serving on http://127.0.0.1:{user.port}"
    assert f"unchanged {user.file}" in user.service("install")
    user.reload('[[model]]\nname = "m"\npath = "/nowhere"\n', "m")
    assert user.systemd.shown("ActiveState") == "active"
    assert user.status()["pid"] == health["pid"]
    assert "stopped" in user.service("stop")
    assert user.status(code=1)["last_exit"] == {"code": 0, "signal": None}
    assert "started, as process" in user.service("start")
    assert f"removed {user.file}" in user.service("uninstall")
    assert not user.file.exists()
    assert user.systemd.shown("LoadState") == "not-found"
    assert user.status(code=1)["installed"] is False


def models(port: int) -> list[str]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/admin/models", timeout=DEADLINE) as answer:
        return [model["id"] for model in json.load(answer)["data"]]


def test_what_a_new_try_does_not_change_is_not_tried_again(user):
    user.service("install", "--no-start")
    user.configure("prot = 1\n")
    assert "code 78" in user.service("start", code=78)
    user.configure()
    with socket.create_server(("127.0.0.1", user.port)):
        assert "code 76" in user.service("start", code=76)
    assert user.status(code=1)["last_exit"] == {"code": 76, "signal": None}
    assert user.systemd.shown("ActiveState") == "failed"
    assert user.systemd.shown("NRestarts") == "0"


def test_what_systemd_cannot_start_is_told_in_its_words(user):
    user.service("install", "--no-start")
    user.file.write_text(user.file.read_text().replace("ExecStart=", "Exec="))
    user.systemd.systemctl("daemon-reload")
    assert "systemd does not start it: Failed to start mlxd.service" in user.service("start", code=1)


def test_an_invalid_configuration_is_refused_before_anything_is_written(user):
    user.configure("prot = 1\n")
    said = user.service("install", code=78)
    assert f"{user.config}:7: engine.prot: unknown key" in said
    assert not user.file.exists()


def test_a_daemon_that_was_killed_or_hangs_is_started_again(user):
    user.settings("RestartSec=10ms\nWatchdogSec=5")
    user.service("install")
    pid = user.status()["pid"]
    os.kill(pid, signal.SIGKILL)
    pid = user.until_process_is_another_than(pid)
    os.kill(pid, signal.SIGSTOP)
    user.until_process_is_another_than(pid)
    assert user.systemd.shown("NRestarts") == "2"


def test_odd_paths_a_memory_limit_and_kept_variables_reach_the_daemon(user):
    odd = user.systemd.home / 'a 50% $HOME;\'"x".toml'
    user.config.rename(odd)
    cache = user.systemd.home / "hf 100% $x"
    said = user.service(
        "install", "--config", odd.name, "--memory-max", "3GiB", HF_HOME=str(cache), MLXD_LOG__LEVEL="x"
    )
    assert "note: the service does not get MLXD_LOG__LEVEL" in said
    pid = user.status(code=0)["pid"]
    assert user.systemd.shown("MemoryMax") == str(3 << 30)
    words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    assert words[-4:-1] == ["serve", "--config", str(odd)]
    environ = Path(f"/proc/{pid}/environ").read_text().split("\0")
    assert f"HF_HOME={cache}" in environ
    said = user.service("install", "--config", str(odd))
    assert "  -MemoryMax=3221225472" in said.splitlines()
    assert "has not seen the new file" in said
    assert user.status()["pid"] == pid


def test_systemd_may_listen_in_the_daemons_place(user):
    user.service("install", "--no-start")
    user.configure()
    unit = user.file.with_name("mlxd.socket")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    unit.write_text(f"[Socket]\nListenStream=127.0.0.1:{port}\n")
    user.systemd.systemctl("daemon-reload")
    user.systemd.systemctl("start", "mlxd.socket")
    try:
        assert models(port) == []
        assert user.systemd.shown("StatusText") == f"serving on http://127.0.0.1:{port}"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", user.port))
    finally:
        user.systemd.systemctl("stop", "mlxd.socket")
        unit.unlink()
