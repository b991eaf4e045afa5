"""The daemon preloads an OpenBLAS at most once, and only where MLX computes on the CPU of a Linux machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from mlxd.daemon.blas import GUARD, BlasPlan, SystemBlas, plan_blas, reexec
from mlxd.daemon.config_errors import ConfigError
from mlxd.daemon.settings import EngineSettings, Settings

LIBRARY = Path("/usr/lib/here/openblas-pthread/libopenblas.so.0")


@dataclass(frozen=True)
class Machine:
    """A machine with a given OpenBLAS, or none; the only loadable library is that one."""

    found: Path | None = LIBRARY
    gpu: bool = False

    def has_gpu_backend(self):
        return self.gpu

    def library(self):
        return self.found

    def is_loadable(self, library):
        return library == self.found

    def cores(self):
        return 6


def plan(blas="auto", environ=None, platform="linux", machine=None):
    settings = Settings(engine=EngineSettings(blas=blas))
    return plan_blas(settings, environ or {}, platform, machine or Machine())


def test_a_found_library_is_preloaded_by_a_second_start():
    chosen = plan(environ={"PATH": "/bin"})
    assert (chosen.library, chosen.reexec) == (LIBRARY, True)
    assert chosen.environ == {
        "PATH": "/bin",
        "LD_PRELOAD": str(LIBRARY),
        "OPENBLAS_NUM_THREADS": "6",
        GUARD: "1",
    }


def test_what_is_preloaded_already_stays_in_front():
    chosen = plan(environ={"LD_PRELOAD": "/a.so /b.so"})
    assert chosen.environ["LD_PRELOAD"] == f"/a.so:/b.so:{LIBRARY}"


def test_a_chosen_number_of_threads_is_left_alone():
    assert plan(environ={"OPENBLAS_NUM_THREADS": "2"}).environ["OPENBLAS_NUM_THREADS"] == "2"


def test_the_second_start_is_the_last():
    first = plan()
    assert not plan(environ=first.environ).reexec
    lost = {name: value for name, value in first.environ.items() if name != "LD_PRELOAD"}
    second = plan(environ=lost)
    assert not second.reexec
    assert "not preloaded" in second.note


def test_an_openblas_that_the_user_preloads_is_taken():
    chosen = plan(environ={"LD_PRELOAD": "/opt/libopenblasp.so.0"})
    assert (chosen.library, chosen.reexec) == (Path("/opt/libopenblasp.so.0"), False)


@pytest.mark.parametrize(
    "case",
    [{"blas": "off"}, {"platform": "darwin"}, {"machine": Machine(gpu=True)}, {"machine": Machine(found=None)}],
)
def test_nothing_is_preloaded_without_need(case):
    chosen = plan(**case)
    assert (chosen.library, chosen.reexec) == (None, False)
    assert chosen.note


def test_without_a_library_the_note_says_how_to_install_one():
    note = plan(machine=Machine(found=None)).note
    assert "libopenblas0-pthread" in note
    assert "openblas (Fedora, Arch)" in note


def test_a_configured_library_is_preloaded():
    assert plan(blas=LIBRARY).library == LIBRARY


def test_a_configured_path_that_is_no_library_is_refused():
    with pytest.raises(ConfigError, match=r"^engine\.blas: expected .* got \"/no/such.so\"$"):
        plan(blas=Path("/no/such.so"))


def test_a_configured_path_that_cannot_be_preloaded_is_refused():
    odd = Path("/with space/libopenblas.so")
    with pytest.raises(ConfigError, match="without spaces"):
        plan(blas=odd, machine=Machine(found=odd))


def test_a_plan_without_a_second_start_cannot_be_carried_out():
    with pytest.raises(ValueError, match="no second start"):
        reexec(BlasPlan(None, False, ""), sys.orig_argv)


def _shared_library(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(Path(sys.executable).read_bytes()[:64])
    return path


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for Linux libraries")
def test_the_variant_with_threads_is_found_first(tmp_path):
    _shared_library(tmp_path / "usr/lib64/libopenblas.so.0")
    _shared_library(tmp_path / "usr/lib64/libopenblas64.so.0")
    plain = _shared_library(tmp_path / "usr/lib/x/libopenblas.so.0")
    assert SystemBlas(tmp_path).library() == plain
    threads = _shared_library(tmp_path / "usr/lib/x/openblas-pthread/libopenblas.so.0")
    assert SystemBlas(tmp_path).library() == threads


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for Linux libraries")
def test_a_library_for_another_machine_is_passed_over(tmp_path):
    foreign = _shared_library(tmp_path / "usr/lib/a/openblas-pthread/libopenblas.so.0")
    header = bytearray(foreign.read_bytes())
    header[18] ^= 0xFF
    foreign.write_bytes(header)
    own = _shared_library(tmp_path / "usr/lib/b/openblas-pthread/libopenblas.so.0")
    finder = SystemBlas(tmp_path)
    assert finder.library() == own
    (tmp_path / "text.so").write_text("no library")
    (tmp_path / "empty.so").touch()
    assert not any(finder.is_loadable(tmp_path / name) for name in ("text.so", "empty.so", "none.so", "."))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="control groups are Linux's")
def test_a_cpu_quota_limits_the_threads(tmp_path):
    group = tmp_path / "sys/fs/cgroup/a/b"
    group.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/a/b\n")
    usable = len(os.sched_getaffinity(0))
    (group / "cpu.max").write_text("max 100000\n")
    assert SystemBlas(tmp_path).cores() == usable
    (group.parent / "cpu.max").write_text("50000 100000\n")
    assert SystemBlas(tmp_path).cores() == 1


CHILD = """
import json, os, sys
from mlxd.daemon.blas import SystemBlas, plan_blas, reexec
from mlxd.daemon.settings import Settings
plan = plan_blas(Settings(), os.environ, sys.platform, SystemBlas())
if plan.reexec:
    print("once", flush=False)
    reexec(plan, sys.orig_argv)
mapped = "openblas" in open("/proc/self/maps").read()
print(json.dumps({"mapped": mapped, "argv": sys.argv[1:], "pid": os.getpid(), "mlx": "mlx" in sys.modules}))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux preloads")
@pytest.mark.parametrize("start", ["script", "module"])
def test_a_real_second_start_has_openblas_mapped(tmp_path, start):
    finder = SystemBlas()
    if finder.library() is None or finder.has_gpu_backend():
        pytest.skip("no OpenBLAS to preload on this machine")
    (tmp_path / "child.py").write_text(CHILD)
    command = [str(tmp_path / "child.py")] if start == "script" else ["-m", "child"]
    environ = {name: value for name, value in os.environ.items() if name not in {"LD_PRELOAD", GUARD}}
    child = subprocess.Popen(
        [sys.executable, *command, "serve", "a b"], cwd=tmp_path, env=environ, stdout=subprocess.PIPE, text=True
    )
    out, _ = child.communicate(timeout=60)
    first, second = out.splitlines()
    assert (child.returncode, first) == (0, "once")
    assert json.loads(second) == {"mapped": True, "argv": ["serve", "a b"], "pid": child.pid, "mlx": False}
