"""The judgements of `mlxd doctor` about machines, libraries and limits that are not those of this machine."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace

import pytest

from mlxd.daemon.blas import BlasPlan
from mlxd.daemon.checkup_mlx import LibraryReport
from mlxd.daemon.cli.doctor_checks import Level, begin
from mlxd.daemon.cli.doctor_machine import Swap, machine_checks, parse_meminfo, parse_swap_usage
from mlxd.daemon.cli.doctor_memory import Room, measure, memory_checks, room_for_models
from mlxd.daemon.cli.doctor_mlx import Trial, mlx_checks, try_libraries
from mlxd.daemon.settings import LoadedConfig, MemorySettings, Settings
from mlxd.daemon.units import Size
from mlxd.memory.footprint import Footprint
from mlxd.memory.outside import Strain, StrainLevel

MIB, GIB = 1 << 20, 1 << 30
MACHINE = Footprint(60 * MIB, 0, 0, 32 * GIB, 20 * GIB)
WHOLE = LibraryReport(60 * MIB, "0.32", "cpu", True, "0.32", 90 * MIB)
FAST = BlasPlan(None, False, "MLX has a fast BLAS of its own on this system")


@dataclass(frozen=True)
class Probe:
    """A machine with these readings."""

    footprint: Footprint = MACHINE
    metal: int | None = None
    wired: int | None = None

    def sample(self):
        return self.footprint

    def metal_limit(self):
        return self.wired or self.metal

    def wired_limit(self):
        return self.wired


def machine(footprint=MACHINE, swap=None, system="linux", processor="x86_64"):
    return {check.name: check for check in machine_checks(footprint, swap, system, processor)}


def memory(probe, report=WHOLE, **settings):
    loaded = LoadedConfig(Settings(memory=MemorySettings(**settings)), None, {})
    measured = measure(probe, report, None)
    room = room_for_models(loaded, measured)
    return {check.name: check for check in memory_checks(loaded, measured, room, None)}


def test_an_ordinary_machine_is_well():
    assert {check.level for check in machine(swap=Swap(8 * GIB, GIB)).values()} == {Level.OK}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("memory", {"footprint": replace(MACHINE, machine_available=2 * GIB)}),
        ("pressure", {"footprint": replace(MACHINE, strain=Strain(StrainLevel.CRITICAL, "some avg10=40"))}),
        ("swap", {"swap": Swap(8 * GIB, 5 * GIB)}),
        ("container", {"footprint": replace(MACHINE, cgroup_limit=8 * GIB, cgroup_available=GIB // 2)}),
        ("system", {"system": "freebsd14"}),
    ],
)
def test_what_makes_a_machine_worse_is_a_warning_with_advice(name, changes):
    checks = machine(**changes)
    assert [check.name for check in checks.values() if check.level is Level.WARNING] == [name]
    assert checks[name].advice


def test_a_mac_without_apple_silicon_cannot_run_mlx():
    assert machine(system="darwin", processor="x86_64")["system"].level is Level.PROBLEM
    assert machine(system="darwin", processor="arm64")["system"].level is Level.OK


def test_what_the_system_says_of_pressure_is_told():
    checks = machine(replace(MACHINE, strain=Strain(StrainLevel.WARN, "some avg10=40")))
    assert checks["pressure"].found.endswith("warn (some avg10=40)")


def test_swap_is_read_as_the_systems_write_it():
    meminfo = (
        "MemTotal:       24684092 kB\nSwapCached:            0 kB\nSwapTotal:       2048 kB\nSwapFree:        1024 kB\n"
    )
    assert parse_meminfo(meminfo) == Swap(2 * MIB, MIB)
    assert parse_meminfo("MemTotal: 1 kB\n") is None
    assert parse_swap_usage("total = 2048.00M  used = 1.50G  free = 512.00M  (encrypted)") == Swap(
        2 * GIB, 3 * GIB // 2
    )
    assert parse_swap_usage("") is None


def test_an_automatic_ceiling_is_told_with_all_that_it_could_come_from():
    checks = memory(Probe(replace(MACHINE, cgroup_limit=16 * GIB), metal=24 * GIB))
    assert checks["bounds"].details["bounds"] == [
        {"name": "cgroup memory.max", "bytes": 15 * GIB, "binds": True},
        {"name": "Metal recommended working set", "bytes": 24 * GIB, "binds": False},
        {"name": "machine total less reserve", "bytes": 28 * GIB, "binds": False},
    ]
    assert "cgroup memory.max 15.0 GiB (binds)" in checks["bounds"].found
    assert checks["limits"].found == "the ceiling is 15.0 GiB (cgroup memory.max), the soft limit 13.5 GiB"
    assert checks["for models"].details == {"base_bytes": 90 * MIB, "left_bytes": 15 * GIB * 9 // 10 - 90 * MIB}


@pytest.mark.parametrize(
    ("settings", "limit"),
    [
        ({"ceiling": Size(fraction=0.5)}, "memory.ceiling"),
        ({"ceiling": Size(bytes=16 * GIB)}, "memory.ceiling"),
        ({"soft": Size(bytes=2 * GIB)}, "memory.soft"),
        ({}, "iogpu.wired_limit_mb"),
    ],
)
def test_the_limit_that_binds_is_named(settings, limit):
    checks = memory(Probe(wired=20 * GIB), **settings)
    assert f"({limit})" in checks["limits"].found
    assert {check.level for check in checks.values()} == {Level.OK}


def test_the_wired_limit_is_told_where_there_is_a_gpu():
    assert "wired limit" not in memory(Probe())
    assert "is not set; Metal recommends at most 24.0 GiB" in memory(Probe(metal=24 * GIB))["wired limit"].found
    assert "is 20.0 GiB" in memory(Probe(wired=20 * GIB))["wired limit"].found


def test_metals_own_word_is_told_once_it_was_asked():
    report = LibraryReport(60 * MIB, "0.32", "gpu", True, "0.32", 90 * MIB, 21 * GIB)
    assert "at most 21.0 GiB" in memory(Probe(metal=24 * GIB), report)["wired limit"].found


@pytest.mark.parametrize(
    ("settings", "limit"),
    [
        ({"ceiling": Size(bytes=50 * MIB)}, "memory.ceiling"),
        ({"soft": Size(bytes=50 * MIB)}, "memory.soft"),
        ({"ceiling": Size(bytes=61 * MIB)}, "memory.ceiling"),
    ],
)
def test_a_limit_that_a_start_would_refuse_is_a_problem(settings, limit):
    found = memory(Probe(), **settings)["limits"]
    assert (found.level, found.details["limit"]) == (Level.PROBLEM, limit)
    assert found.advice.startswith(f"raise {limit}")
    assert "the daemon itself uses 90.0 MiB" in found.advice


def test_a_soft_limit_above_an_automatic_ceiling_is_a_problem():
    found = memory(Probe(), soft=Size(bytes=40 * GIB))["limits"]
    assert (found.level, found.advice) == (Level.PROBLEM, "lower memory.soft")


def test_a_limit_above_the_start_but_below_the_loaded_libraries_leaves_nothing_for_models():
    found = memory(Probe(), ceiling=Size(bytes=80 * MIB), soft=Size(fraction=1.0))["for models"]
    assert (found.level, found.advice) == (Level.PROBLEM, "raise memory.ceiling")
    assert found.details["left_bytes"] == -10 * MIB


def test_what_others_take_of_the_room_for_models_is_told():
    probe = Probe(replace(MACHINE, machine_available=4 * GIB))
    assert "others leave 4.0 GiB" in memory(probe)["for models"].found
    assert isinstance(room_for_models(LoadedConfig(Settings(), None, {}), measure(probe, WHOLE, None)), Room)


@pytest.mark.parametrize(
    ("trial", "name", "says"),
    [
        (Trial(None, "ModuleNotFoundError: no aiohttp"), "mlxd", "no aiohttp"),
        (Trial(LibraryReport(1), "ImportError: libmlx"), "mlx", "ImportError: libmlx"),
        (Trial(LibraryReport(1, "0.32", "gpu"), "SIGABRT ended it"), "mlx", "cannot compute on the gpu: SIGABRT"),
        (Trial(LibraryReport(1, "0.32", "gpu", False), None), "mlx", "came out wrong"),
        (Trial(LibraryReport(1, "0.32", "cpu", True), "ImportError: transformers"), "mlx-lm", "transformers"),
        (Trial(LibraryReport(1, "0.32", "cpu", True), "it did not end within 60 s"), "mlx-lm", "within 60 s"),
    ],
)
def test_the_library_that_fails_is_named_with_what_ended_it(trial, name, says):
    [problem] = [check for check in mlx_checks(trial, FAST) if check.level is Level.PROBLEM]
    assert problem.name == name
    assert says in problem.found
    assert problem.advice


def test_a_slow_blas_is_a_warning():
    checks = mlx_checks(Trial(WHOLE, None), BlasPlan(None, False, "no OpenBLAS found", slow=True))
    assert [check.name for check in checks if check.level is Level.WARNING] == ["blas"]


def test_a_trial_that_hangs_is_ended_and_what_it_had_reported_counts():
    report = '{"start_bytes": 7, "mlx": "0.32"}'
    script = f"import threading\nprint('{report}', flush=True)\nthreading.Event().wait()"
    trial = try_libraries({}, seconds=2.0, command=(sys.executable, "-c", script))
    assert trial == Trial(LibraryReport(7, "0.32"), "it did not end within 2 s")


def test_a_trial_that_cannot_be_started_has_failed():
    trial = try_libraries({}, command=("/no/such/python",))
    assert trial.report is None
    assert "cannot be started" in trial.failure


def test_the_libraries_of_this_machine_pass_the_trial():
    trial = try_libraries(os.environ)
    assert trial.failure is None
    assert trial.report.computes
    assert trial.report.base_bytes > trial.report.start_bytes > 0


def test_what_a_thread_raises_reaches_whoever_waits():
    with pytest.raises(ZeroDivisionError):
        begin(lambda: 1 // 0).result(10)
