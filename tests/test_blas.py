"""MLX gets an OpenBLAS, and only where it computes on the CPU of a Linux machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from mlxd.daemon.blas import SystemBlas, plan_blas
from mlxd.daemon.config_errors import ConfigError
from mlxd.daemon.settings import EngineSettings, Settings
from mlxd.engines.blas_preload import BlasShare
from mlxd.engines.blas_variables import CORES
from mlxd.engines.blas_variables import LIBRARY as VARIABLE

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


def test_a_found_library_is_loaded_before_mlx():
    chosen = plan(environ={"PATH": "/bin"})
    assert chosen.library == LIBRARY
    assert chosen.variables == {VARIABLE: str(LIBRARY), "OPENBLAS_NUM_THREADS": "6", CORES: "6"}


def test_a_chosen_number_of_threads_is_left_alone():
    assert plan(environ={"OPENBLAS_NUM_THREADS": "2"}).variables == {VARIABLE: str(LIBRARY)}


def test_an_openblas_that_the_user_preloads_is_taken_unless_another_is_configured():
    environ = {"LD_PRELOAD": "/a.so /opt/libopenblasp.so.0"}
    assert plan(environ=environ).library == Path("/opt/libopenblasp.so.0")
    assert plan(LIBRARY, environ).library == LIBRARY


def test_what_an_environment_said_before_is_forgotten():
    environ = {VARIABLE: "/old.so", CORES: "3", "PATH": "/bin"}
    plan("off").announce(environ)
    assert environ == {"PATH": "/bin"}
    plan().announce(environ)
    assert environ[VARIABLE] == str(LIBRARY)


@pytest.mark.parametrize(
    "case",
    [{"blas": "off"}, {"platform": "darwin"}, {"machine": Machine(gpu=True)}, {"machine": Machine(found=None)}],
)
def test_nothing_is_loaded_without_need(case):
    chosen = plan(**case)
    assert (chosen.library, chosen.variables) == (None, {})
    assert chosen.note


def test_without_a_library_the_note_says_how_to_install_one():
    note = plan(machine=Machine(found=None)).note
    assert "libopenblas0-pthread" in note
    assert "openblas (Fedora, Arch)" in note


def test_a_configured_library_is_taken():
    assert plan(blas=LIBRARY).library == LIBRARY


def test_a_configured_path_that_is_no_library_is_refused():
    with pytest.raises(ConfigError, match=r"^engine\.blas: expected .* got \"/no/such.so\"$"):
        plan(blas=Path("/no/such.so"))


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
import json, sys, time
from mlxd.engines.blas_preload import preload_blas
preload_blas()
import mlx.core as mx
maps = open("/proc/self/maps").read()
square = mx.full((700, 700), 0.5)
seconds = []
for _ in range(4):
    started = time.perf_counter()
    mx.eval(square @ square)
    seconds.append(time.perf_counter() - started)
print(json.dumps({"mapped": "openblas" in maps, "seconds": min(seconds)}))
"""


def computed(**more):
    """What a process with these variables finds: a library, and the seconds of a matrix product."""
    environ = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"} | more
    child = subprocess.run([sys.executable, "-c", CHILD], env=environ, capture_output=True, text=True, check=True)
    return json.loads(child.stdout.splitlines()[-1]), child.stdout


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="MLX has a fast BLAS elsewhere")
def test_mlx_computes_with_the_library_that_was_loaded_first():
    finder = SystemBlas()
    library = finder.library()
    if library is None or finder.has_gpu_backend():
        pytest.skip("no OpenBLAS on this machine")
    slow, _ = computed()
    fast, _ = computed(**plan(machine=finder).variables)
    assert (slow["mapped"], fast["mapped"]) == (False, True)
    # it is 13 to 70 times
    assert fast["seconds"] < slow["seconds"] / 3


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="MLX has a fast BLAS elsewhere")
def test_a_library_that_cannot_be_loaded_is_told_and_mlx_computes_without_it(tmp_path):
    broken = _shared_library(tmp_path / "libopenblas.so.0")
    found, output = computed(**{VARIABLE: str(broken)})
    assert not found["mapped"]
    assert "blas.failed" in output
    assert str(broken) in output


SHARING = """
import ctypes, os
from mlxd.engines.blas_preload import BlasShare, preload_blas
from mlxd.engines.blas_variables import LIBRARY as VARIABLE
preload_blas()
threads = ctypes.CDLL(os.environ[VARIABLE]).openblas_get_num_threads
working, seen = [], []
share = BlasShare(lambda: working[-1])
for count in (2, 3, 9, 2, 1, 0):
    working.append(count)
    share.look()
    seen.append(threads())
print(seen)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="MLX has a fast BLAS elsewhere")
def test_workers_share_the_cores_while_others_work():
    library = SystemBlas().library()
    if library is None:
        pytest.skip("no OpenBLAS on this machine")
    environ = {**os.environ, VARIABLE: str(library), CORES: "6", "OPENBLAS_NUM_THREADS": "6"}
    child = subprocess.run([sys.executable, "-c", SHARING], env=environ, capture_output=True, text=True, check=True)
    assert child.stdout.split("\n")[-2] == "[3, 2, 1, 3, 6, 6]"


def test_cores_are_not_shared_where_the_user_chose_or_the_library_cannot(monkeypatch):
    monkeypatch.delenv(CORES, raising=False)
    monkeypatch.setenv(VARIABLE, "/no/such.so")
    BlasShare(lambda: 2).look()  # nothing to share
    monkeypatch.setenv(CORES, "4")
    with capture_logs() as lines:
        share = BlasShare(lambda: 2)
        share.look()
        share.look()
    assert [line["event"] for line in lines] == ["blas.not_shared"]
