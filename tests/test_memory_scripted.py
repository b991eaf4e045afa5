"""Readings from a file: what it gives counts, what it leaves out is measured, nonsense is an error."""

from __future__ import annotations

import dataclasses
import json

import pytest

from mlxd.memory.footprint import Footprint
from mlxd.memory.outside import CALM, Strain, StrainLevel
from mlxd.memory.scripted import FileProbe, ProbeFileError


class FixedProbe:
    """Always the same reading."""

    def __init__(self, footprint):
        self._footprint = footprint

    def sample(self):
        return self._footprint

    def metal_limit(self):
        return 4242

    def wired_limit(self):
        return None


SYSTEM = Footprint(1, 2, 3, 4, 5, 6)


def test_a_file_drives_the_readings_and_what_it_leaves_out_is_measured(tmp_path):
    path = tmp_path / "probe.json"
    probe = FileProbe(path, FixedProbe(SYSTEM))
    path.write_text("{}")
    assert probe.sample() == SYSTEM
    path.write_text(json.dumps({"bytes": 900, "cgroup_limit": None}))
    assert probe.sample() == dataclasses.replace(SYSTEM, bytes=900, cgroup_limit=None)
    assert (probe.metal_limit(), probe.wired_limit()) == (4242, None)
    path.write_text(json.dumps({"metal_limit": None, "wired_limit": 7}))
    assert (probe.metal_limit(), probe.wired_limit()) == (None, 7)


def test_a_file_drives_what_the_world_outside_says(tmp_path):
    path = tmp_path / "probe.json"
    probe = FileProbe(path, FixedProbe(dataclasses.replace(SYSTEM, strain=Strain(StrainLevel.WARN, "PSI"))))
    path.write_text(json.dumps({"mlx_peak": 7, "cgroup_available": 8, "machine_available": 9}))
    sample = probe.sample()
    assert (sample.mlx_peak, sample.cgroup_available, sample.machine_available) == (7, 8, 9)
    assert sample.strain == Strain(StrainLevel.WARN, "PSI")
    path.write_text(json.dumps({"strain": "critical", "cgroup_available": None}))
    assert probe.sample().strain == Strain(StrainLevel.CRITICAL, "the probe file says critical")
    path.write_text(json.dumps({"strain": "none"}))
    assert probe.sample().strain == CALM


def test_a_machine_of_the_files_own_has_all_available_that_is_not_used(tmp_path):
    path = tmp_path / "probe.json"
    probe = FileProbe(path, FixedProbe(SYSTEM))
    path.write_text(json.dumps({"machine_total": 1000, "bytes": 300}))
    assert probe.sample().machine_available == 700
    path.write_text(json.dumps({"machine_total": 1000, "bytes": 3000}))
    assert probe.sample().machine_available == 0
    path.write_text(json.dumps({"machine_total": 1000, "bytes": 300, "machine_available": 20}))
    assert probe.sample().machine_available == 20


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        '{"strain": "grave"}',
        '{"cgroup_available": -1}',
        '{"bytes": "many"}',
        '{"bytes": -1}',
        '{"byts": 1}',
        '{"bytes": 1.5}',
        "[" * 100_000,
    ],
)
def test_a_malformed_probe_file_is_a_clear_error(tmp_path, content):
    path = tmp_path / "probe.json"
    path.write_text(content)
    with pytest.raises(ProbeFileError, match=r"probe\.json"):
        FileProbe(path, FixedProbe(SYSTEM)).sample()


def test_a_missing_probe_file_is_a_clear_error(tmp_path):
    with pytest.raises(ProbeFileError, match=r"absent\.json"):
        FileProbe(tmp_path / "absent.json", FixedProbe(SYSTEM)).sample()
