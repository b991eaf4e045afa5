"""A real systemd of a user, apart from the machine's: in namespaces and a control group of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from cli_process import SCRIPT
from notify_socket import NotifySocket

DEADLINE = 30.0
_BINARIES = ("/usr/lib/systemd/systemd", "/lib/systemd/systemd")
_OUTER = 'echo $$ > "$GROUP/cgroup.procs" && exec unshare --mount --cgroup sh -ec "$INNER"'
# it wants to be the only one that manages control groups, on a machine that systemd has booted
_INNER = """
while mountpoint -q /sys/fs/cgroup; do umount -R -l /sys/fs/cgroup; done
mount -t cgroup2 none /sys/fs/cgroup
mount -t tmpfs none /run
mkdir -p /run/systemd/system
exec "$SYSTEMD" --user --log-target=null
"""


@dataclass(frozen=True)
class PrivateSystemd:
    """A running systemd; `environ` is what a shell of its user has."""

    home: Path
    environ: dict[str, str]

    def mlxd(self, *words: str, **extra: str) -> subprocess.CompletedProcess[str]:
        """Run the real command line to its end."""
        return self._run(SCRIPT, *words, **extra)

    def systemctl(self, *words: str) -> str:
        """What systemctl says."""
        done = self._run("systemctl", "--user", "--no-pager", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def shown(self, name: str, unit: str = "mlxd.service") -> str:
        """One property of a unit."""
        return self.systemctl("show", "--value", f"--property={name}", unit)

    def _run(self, *command: str, **extra: str) -> subprocess.CompletedProcess[str]:
        environ = self.environ | extra
        return subprocess.run(
            command, capture_output=True, text=True, env=environ, cwd=self.home, timeout=DEADLINE, check=False
        )


@contextmanager
def private_systemd(folder: Path) -> Iterator[PrivateSystemd]:
    """Run it until the block ends. The test is skipped where that cannot be done."""
    binary = next((path for path in _BINARIES if Path(path).exists()), None)
    if binary is None or shutil.which("systemctl") is None or shutil.which("unshare") is None:
        pytest.skip("there is no systemd here")
    if os.getuid() != 0:
        pytest.skip("only root can run a systemd of its own")
    with _group() as group, tempfile.TemporaryDirectory(prefix="sd") as runtime:
        environ = {"HOME": str(folder), "PATH": os.environ["PATH"], "XDG_RUNTIME_DIR": runtime, "LC_ALL": "C.UTF-8"}
        with _started(binary, group, environ, folder):
            yield PrivateSystemd(folder, environ)


@contextmanager
def _started(binary: str, group: Path, environ: dict[str, str], folder: Path) -> Iterator[None]:
    told = {"GROUP": str(group), "INNER": _INNER, "SYSTEMD": binary}
    log = folder / "systemd.log"
    ready = NotifySocket(Path(environ["XDG_RUNTIME_DIR"]) / "n")
    with log.open("w") as errors:
        told["NOTIFY_SOCKET"] = ready.address
        process = subprocess.Popen(["sh", "-ec", _OUTER], stdout=errors, stderr=errors, env=environ | told)
    try:
        with ready:  # it tells more later, and would wait for whoever does not listen
            _wait_ready(ready, log)
        yield
    finally:
        (group / "cgroup.kill").write_text("1")
        process.wait(DEADLINE)


def _wait_ready(ready: NotifySocket, log: Path) -> None:
    try:
        ready.until("READY")
    except TimeoutError:
        pytest.skip(f"systemd does not run here: {log.read_text()[-500:]}")


@contextmanager
def _group() -> Iterator[Path]:
    """A control group of version 2, in whatever place the machine has them."""
    found = re.search(r"^\S+ \S+ \S+ \S+ (\S+) .* - cgroup2 ", Path("/proc/self/mountinfo").read_text(), re.MULTILINE)
    if found is None:
        pytest.skip("there are no control groups of version 2 here")
    group = Path(found[1]) / f"mlxd-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"control groups cannot be made here: {error}")
    try:
        if not (group / "cgroup.kill").exists():
            pytest.skip("control groups cannot be ended as a whole here")
        yield group
    finally:
        for inner in sorted(group.rglob("*/"), reverse=True):
            inner.rmdir()
        group.rmdir()
