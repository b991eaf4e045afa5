"""Probes: the kernel's own numbers, children, control groups, macOS's structure, and readings from a file."""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import subprocess
import sys

import psutil
import pytest

from mlxd.memory.darwin import DarwinKernel, RusageInfoV0, default_working_set
from mlxd.memory.outside import StrainLevel
from mlxd.memory.probe import SystemProbe, descendants, has_ended
from mlxd.memory.process_tree import listed_descendants

MIB = 1 << 20
GIB = 1 << 30


def no_children():
    return []


def test_the_footprint_grows_with_what_the_process_holds():
    probe = SystemProbe(children=no_children)
    before = probe.sample()
    # pages of its own: what the allocator still has free would not count
    with mmap.mmap(-1, 64 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as held:
        held[:: mmap.PAGESIZE] = b"\1" * len(held[:: mmap.PAGESIZE])
        after = probe.sample()
    # what other threads of this process free or take meanwhile counts too
    assert 40 * MIB < after.bytes - before.bytes < 90 * MIB
    assert after.machine_total == psutil.virtual_memory().total
    assert 0 < after.machine_available < after.machine_total


def test_children_are_added_until_they_end():
    probe = SystemProbe()
    before = probe.sample().bytes
    holds = "held = bytearray(b'1') * (64 << 20); print('ready', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", holds], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"ready\n"
        # what this process itself gives back meanwhile counts too
        assert probe.sample().bytes - before > 40 * MIB
        child.communicate(b"\n")
    assert probe.sample().bytes - before < 30 * MIB


def test_descendants_are_found_over_generations():
    leaf = "print('ready', flush=True); input()"
    parent = f"import subprocess, sys; subprocess.call([sys.executable, '-c', {leaf!r}])"
    known = set(descendants())
    with subprocess.Popen([sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"ready\n"
        found = set(descendants()) - known
        assert child.pid in found
        assert len(found) == 2
        child.communicate(b"\n")
    assert set(descendants()) <= known


def test_a_process_without_children_has_no_descendants():
    script = "from mlxd.memory.probe import descendants; assert descendants() == []"
    subprocess.run([sys.executable, "-Ic", script], check=True, timeout=60)


def test_a_child_that_vanished_is_skipped():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    alone = SystemProbe(children=no_children).sample().bytes
    assert abs(SystemProbe(children=lambda: [child.pid]).sample().bytes - alone) < 8 * MIB


def test_a_zombie_counts_nothing_and_its_exit_status_is_left_alone():
    child = subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    alone = SystemProbe(children=no_children).sample().bytes
    assert abs(SystemProbe(children=lambda: [child.pid]).sample().bytes - alone) < 8 * MIB
    descendants()
    assert child.wait() == 7


def test_memory_is_read_and_models_are_inspected_without_mlx(tmp_path):
    script = (
        "import sys, pathlib\n"
        "from mlxd.memory import estimates, guard, limits, parts, probe, scripted\n"
        "sample = probe.SystemProbe().sample()\n"
        "estimates.inspect_folder(pathlib.Path(sys.argv[1]))\n"
        "assert (sample.mlx_active, sample.mlx_cache, sample.mlx_peak) == (0, 0, 0)\n"
        "assert sample.bytes > 1 << 20\n"
        "heavy = {'mlx', 'mlx_lm', 'mlx_vlm', 'transformers', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-Ic", script, str(tmp_path)], check=True, timeout=60)


def test_a_sample_with_a_child_process_costs_less_than_two_milliseconds():
    script = (
        "import statistics, subprocess, sys, time\n"
        "from mlxd.memory.probe import SystemProbe\n"
        "holds = 'held = bytearray(b\"1\") * (200 << 20); print(1, flush=True); input()'\n"
        "child = subprocess.Popen([sys.executable, '-c', holds], stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        "probe, seconds = SystemProbe(), []\n"
        "for _ in range(400):\n"
        "    begin = time.perf_counter()\n"
        "    sample = probe.sample()\n"
        "    seconds.append(time.perf_counter() - begin)\n"
        "child.communicate(b'\\n')\n"
        "assert 'mlx.core' not in sys.modules\n"
        "assert sample.bytes > 200 << 20\n"
        "print(statistics.median(seconds))\n"
    )
    ran = subprocess.run([sys.executable, "-Ic", script], check=True, timeout=60, stdout=subprocess.PIPE)
    assert float(ran.stdout) < 0.002


def test_mlx_counters_are_read_once_something_loaded_mlx():
    import mlx.core as mx

    probe = SystemProbe(children=no_children)
    before = probe.sample().mlx_active
    array = mx.zeros((4 * MIB,), dtype=mx.float32)
    mx.eval(array)
    held = probe.sample()
    assert held.mlx_active - before >= 16 * MIB
    assert held.mlx_peak >= held.mlx_active
    del array
    assert probe.sample().mlx_active - before < 16 * MIB
    assert probe.sample().mlx_peak >= held.mlx_peak


def test_without_the_kernels_split_the_resident_size_stands_in(tmp_path):
    (tmp_path / str(os.getpid())).mkdir()
    (tmp_path / str(os.getpid()) / "status").write_text("Name:\tx\nVmRSS:\t 1 kB\n")
    sample = SystemProbe(proc=tmp_path, children=no_children).sample()
    assert abs(sample.bytes - psutil.Process().memory_info().rss) < 8 * MIB


def test_anonymous_and_shared_pages_count_and_file_pages_do_not(tmp_path):
    status = "VmRSS:\t 900 kB\nRssAnon:\t 100 kB\nRssFile:\t 700 kB\nRssShmem:\t 20 kB\n"
    for pid in (os.getpid(), 7):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "status").write_text(status)
    assert SystemProbe(proc=tmp_path, children=lambda: [7]).sample().bytes == 240 << 10


@pytest.mark.parametrize("status", [b"", b"RssAnon:\n", b"RssAnon: many kB\nRssShmem: -1 kB\n", b"\x00\xff" * 50])
def test_a_status_that_is_not_understood_falls_back_to_the_resident_size(tmp_path, status):
    (tmp_path / str(os.getpid())).mkdir()
    (tmp_path / str(os.getpid()) / "status").write_bytes(status)
    sample = SystemProbe(proc=tmp_path, children=no_children).sample()
    assert abs(sample.bytes - psutil.Process().memory_info().rss) < 8 * MIB


def process_files(proc, children):
    """Threads and what each lists, by process and thread id."""
    for pid, threads in children.items():
        for thread, listed in threads.items():
            (proc / str(pid) / "task" / str(thread)).mkdir(parents=True)
            if listed is not None:
                (proc / str(pid) / "task" / str(thread) / "children").write_text(listed)


def test_children_of_every_thread_and_theirs_are_listed_once(tmp_path):
    process_files(tmp_path, {1: {1: "2 3 ", 11: "4 "}, 2: {2: "5 "}, 4: {4: "", 41: "6 3 "}, 6: {6: "1 "}})
    assert sorted(listed_descendants(1, tmp_path)) == [2, 3, 4, 5, 6]


def test_processes_and_threads_that_ended_and_nonsense_list_nothing(tmp_path):
    process_files(tmp_path, {1: {1: "2 x -3 ", 11: None}})
    assert listed_descendants(1, tmp_path) == [2]


@pytest.mark.skipif(sys.platform != "linux", reason="pressure stall information is Linux's")
def test_the_strain_is_what_the_kernel_tells_of_a_short_machine(tmp_path):
    (tmp_path / "pressure").mkdir()
    (tmp_path / "pressure" / "memory").write_text("some avg10=50.00 avg60=0.00 avg300=0.00 total=1\n")
    probe = SystemProbe(proc=tmp_path, children=no_children)
    machine = psutil.virtual_memory()
    short = machine.available * 4 < machine.total
    assert probe.sample().strain.level is (StrainLevel.CRITICAL if short else StrainLevel.NONE)
    assert probe.strain(machine_short=True, group_short=False).told == "PSI some 50 %"


class FakeSystemLibrary:
    """macOS's two functions over real C pointers: `footprints` by pid, `wired_mb` and `level` None if unknown."""

    def __init__(self, footprints=None, wired_mb=None, level=None):
        self._footprints = footprints or {}
        self._numbers = {b"iogpu.wired_limit_mb": wired_mb, b"kern.memorystatus_vm_pressure_level": level}
        self.proc_pid_rusage = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p)(self._rusage)
        self.sysctlbyname = ctypes.CFUNCTYPE(
            ctypes.c_int,
            ctypes.c_char_p,
            ctypes.c_void_p,
            ctypes.POINTER(ctypes.c_size_t),
            ctypes.c_void_p,
            ctypes.c_size_t,
        )(self._sysctl)

    def _rusage(self, pid, flavor, buffer):
        if pid not in self._footprints or flavor != 0:
            return -1
        raw = struct.pack("=16s10Q", b"u" * 16, 1, 2, 3, 4, 5, 6, 7, self._footprints[pid], 9, 10)
        ctypes.memmove(buffer, raw, len(raw))
        return 0

    def _sysctl(self, name, value, size, _new, _new_size):
        number = self._numbers.get(name)
        if number is None:
            return -1
        ctypes.memmove(value, struct.pack("=i", number), 4)
        size[0] = 4
        return 0


def test_the_footprint_lies_where_macos_puts_it():
    assert ctypes.sizeof(RusageInfoV0) == 96
    assert RusageInfoV0.ri_phys_footprint.offset == 72


def test_on_macos_physical_footprints_are_added_and_a_process_it_does_not_tell_of_falls_back():
    kernel = DarwinKernel(FakeSystemLibrary({os.getpid(): 5 * GIB, 41: 2 * GIB}))
    sample = SystemProbe(darwin=kernel, children=lambda: [41]).sample()
    assert sample.bytes == 7 * GIB
    untold = SystemProbe(darwin=DarwinKernel(FakeSystemLibrary()), children=no_children).sample()
    assert abs(untold.bytes - psutil.Process().memory_info().rss) < 8 * MIB


@pytest.mark.parametrize(("wired_mb", "expected"), [(None, None), (0, None), (26624, 26 * GIB)])
def test_the_wired_limit_is_none_unless_somebody_set_it(wired_mb, expected):
    kernel = DarwinKernel(FakeSystemLibrary(wired_mb=wired_mb))
    assert SystemProbe(darwin=kernel).wired_limit() == expected


@pytest.mark.parametrize(
    ("level", "expected", "told"),
    [
        (None, StrainLevel.NONE, ""),
        (1, StrainLevel.NONE, ""),
        (2, StrainLevel.WARN, "macOS says warn"),
        (4, StrainLevel.CRITICAL, "macOS says critical"),
        (3, StrainLevel.NONE, ""),
    ],
)
def test_macos_tells_its_pressure_level(level, expected, told):
    kernel = DarwinKernel(FakeSystemLibrary(level=level))
    strain = SystemProbe(darwin=kernel, children=no_children).sample().strain
    assert (strain.level, strain.told) == (expected, told)


def test_metals_limit_is_estimated_on_macos_before_mlx_is_loaded(monkeypatch):
    monkeypatch.delitem(sys.modules, "mlx.core", raising=False)
    total = psutil.virtual_memory().total
    assert SystemProbe(darwin=DarwinKernel(FakeSystemLibrary())).metal_limit() == default_working_set(total)
    assert SystemProbe(darwin=DarwinKernel(FakeSystemLibrary(wired_mb=4096))).metal_limit() == 4 * GIB
    assert default_working_set(24 * GIB) == 16 * GIB
    assert default_working_set(64 * GIB) == 48 * GIB


@pytest.mark.skipif(sys.platform != "linux", reason="macOS has Metal")
def test_linux_has_no_metal_limit_with_or_without_mlx(monkeypatch):
    import mlx.core  # noqa: F401 - loaded on purpose

    assert SystemProbe().metal_limit() is None
    assert SystemProbe().wired_limit() is None
    monkeypatch.delitem(sys.modules, "mlx.core")
    assert SystemProbe().metal_limit() is None


def test_a_process_has_ended_before_anybody_waits_for_it():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert not has_ended(child.pid)
        child.kill()
        assert child.stdout is not None
        child.stdout.read()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert has_ended(child.pid)
    assert has_ended(child.pid)
