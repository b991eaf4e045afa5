"""Control groups: the lowest limit of the own group and its ancestors, in both versions."""

from __future__ import annotations

import pytest

from mlxd.memory.cgroup import limit_files, lowest_limit


def cgroup_tree(tmp_path, groups, mounts, limits):
    own = tmp_path / "proc" / "self"
    own.mkdir(parents=True)
    (own / "cgroup").write_text("".join(f"{line}\n" for line in groups))
    (own / "mountinfo").write_text(
        "".join(
            f"30 23 0:26 {root} {tmp_path}{point} rw,nosuid - {kind} none {options}\n"
            for root, point, kind, options in mounts
        )
    )
    for path, text in limits.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return lowest_limit(limit_files(tmp_path / "proc"))


@pytest.mark.parametrize(
    ("own", "parent", "expected"),
    [("5000\n", "max\n", 5000), ("max\n", "4000\n", 4000), ("5000\n", "4000\n", 4000), ("max\n", "max\n", None)],
)
def test_the_lowest_limit_of_a_group_and_its_ancestors_holds(tmp_path, own, parent, expected):
    limits = {"cg/user/memory.max": parent, "cg/user/app/memory.max": own}
    mounts = [("/", "/cg", "cgroup2", "rw")]
    assert cgroup_tree(tmp_path, ["0::/user/app"], mounts, limits) == expected


def test_version_one_groups_are_read_and_their_huge_number_means_no_limit(tmp_path):
    limits = {
        "cg/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "cg/memory/job/memory.limit_in_bytes": "123456\n",
    }
    mounts = [("/", "/cg/cpu", "cgroup", "rw,cpu"), ("/", "/cg/memory", "cgroup", "rw,memory")]
    groups = ["9:cpu:/other", "4:memory:/job", "0::/"]
    assert cgroup_tree(tmp_path, groups, mounts, limits) == 123456
    (tmp_path / "cg/memory/job/memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert lowest_limit(limit_files(tmp_path / "proc")) is None


@pytest.mark.parametrize(
    ("root", "group"), [("/docker/abc", "/docker/abc"), ("/docker/abc", "/elsewhere"), ("/", "/../sibling"), ("/", "/")]
)
def test_inside_a_container_the_mount_itself_is_the_own_group(tmp_path, root, group):
    mounts = [(root, "/cg", "cgroup2", "rw")]
    (tmp_path / "sibling").mkdir()
    (tmp_path / "sibling" / "memory.max").write_text("1\n")
    assert cgroup_tree(tmp_path, [f"0::{group}"], mounts, {"cg/memory.max": "777\n"}) == 777


def test_mount_points_with_blanks_are_found(tmp_path):
    limits = {"my cg/memory.max": "99\n"}
    assert cgroup_tree(tmp_path, ["0::/"], [("/", r"/my\040cg", "cgroup2", "rw")], limits) == 99


@pytest.mark.parametrize("text", ["", "-1\n", "garbage\n", "\n\n"])
def test_a_limit_that_is_no_number_is_none(tmp_path, text):
    assert cgroup_tree(tmp_path, ["0::/"], [("/", "/cg", "cgroup2", "rw")], {"cg/memory.max": text}) is None


def test_without_control_groups_there_is_no_limit(tmp_path):
    assert limit_files(tmp_path) == ()
    assert cgroup_tree(tmp_path, ["nonsense", "::"], [], {}) is None
