"""Pressure stall information: how bad it is, when it is a sign of anything, and files that say nothing."""

from __future__ import annotations

import errno

import pytest

from mlxd.memory.outside import CALM, Strain, StrainLevel
from mlxd.memory.pressure_stall import Stall, StallFiles, is_short, read_stall, strain_of


def told(some, full):
    return (
        f"some avg10={some:.2f} avg60=1.00 avg300=2.00 total=235916\n"
        f"full avg10={full:.2f} avg60=3.00 avg300=4.00 total=164532\n"
    )


def test_the_last_ten_seconds_are_read(tmp_path):
    file = tmp_path / "memory"
    file.write_text(told(23.45, 1.5))
    assert read_stall(file) == Stall(23.45, 1.5)
    file.write_text("some avg10=100.00 avg60=1.00 avg300=2.00 total=1\n")
    assert read_stall(file) == Stall(100.0, 0.0)


@pytest.mark.parametrize("text", ["", "\n", "some", "some avg10= avg60=1\n", "some avg10=nan avg60=1\n", "\x00\xff"])
def test_a_file_that_is_not_understood_says_nothing(tmp_path, text):
    (tmp_path / "memory").write_text(text)
    assert read_stall(tmp_path / "memory") == Stall()


class SwitchedOff:
    """A file of a kernel that was started with psi=0."""

    def read_bytes(self):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")


def test_a_missing_file_and_one_that_is_switched_off_say_nothing(tmp_path):
    assert read_stall(tmp_path / "absent") == Stall()
    assert read_stall(SwitchedOff()) == Stall()


@pytest.mark.parametrize(
    ("some", "full", "strain"),
    [
        (0.0, 0.0, CALM),
        (9.99, 9.99, CALM),
        (10.0, 0.0, Strain(StrainLevel.WARN, "PSI some 10 %")),
        (39.9, 9.9, Strain(StrainLevel.WARN, "PSI some 39 %")),
        (40.0, 0.0, Strain(StrainLevel.CRITICAL, "PSI some 40 %")),
        (12.0, 10.0, Strain(StrainLevel.CRITICAL, "PSI full 10 %")),
    ],
)
def test_a_tenth_of_the_time_warns_and_a_tenth_without_any_work_is_critical(some, full, strain):
    assert strain_of(Stall(some, full)) == strain


@pytest.fixture
def files(tmp_path):
    (tmp_path / "machine").write_text(told(50, 20))
    (tmp_path / "group").write_text(told(23, 0))
    return StallFiles(tmp_path / "machine", tmp_path / "group")


def test_stalls_without_a_shortage_are_somebody_elses_or_only_file_pages(files):
    assert files.strain(machine_short=False, group_short=False) == CALM


def test_a_short_group_counts_its_own_stalls_and_a_short_machine_all(files):
    assert files.strain(machine_short=False, group_short=True).told == "PSI some 23 %"
    assert files.strain(machine_short=True, group_short=False).told == "PSI full 20 %"
    alone = StallFiles(files.machine, None)
    assert alone.strain(machine_short=False, group_short=True) == CALM
    assert alone.strain(machine_short=True, group_short=True).level is StrainLevel.CRITICAL


def test_on_a_short_machine_the_own_groups_stalls_count_even_if_the_machines_are_not_told(files):
    alone = StallFiles(files.machine.with_name("absent"), files.group)
    assert alone.strain(machine_short=True, group_short=False).level is StrainLevel.WARN


def test_less_than_a_quarter_is_short():
    assert is_short(24, 100)
    assert not is_short(25, 100)
    assert not is_short(0, 0)
