"""Readings from a file: what it gives counts, what it leaves out is measured, nonsense is an error."""

from __future__ import annotations

import dataclasses
import json

import pytest

from mlxd.memory.footprint import Footprint
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


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", '{"bytes": "many"}', '{"bytes": -1}', '{"byts": 1}', '{"bytes": 1.5}', "[" * 100_000],
)
def test_a_malformed_probe_file_is_a_clear_error(tmp_path, content):
    path = tmp_path / "probe.json"
    path.write_text(content)
    with pytest.raises(ProbeFileError, match=r"probe\.json"):
        FileProbe(path, FixedProbe(SYSTEM)).sample()


def test_a_missing_probe_file_is_a_clear_error(tmp_path):
    with pytest.raises(ProbeFileError, match=r"absent\.json"):
        FileProbe(tmp_path / "absent.json", FixedProbe(SYSTEM)).sample()
