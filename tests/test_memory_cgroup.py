"""Control groups: limits of the own group and its ancestors and what is left of them, in both versions."""

from __future__ import annotations

import shutil

import pytest

from mlxd.memory.cgroup import Allowance, allowance, memory_groups, pressure_file


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
    return allowance(memory_groups(tmp_path / "proc")).limit


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
    assert allowance(memory_groups(tmp_path / "proc")) == Allowance()


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


@pytest.mark.parametrize("text", ["", "-1\n", "garbage\n", "\n\n", "9" * 5000, "\xb2\n"])
def test_a_limit_that_is_no_number_is_none(tmp_path, text):
    assert cgroup_tree(tmp_path, ["0::/"], [("/", "/cg", "cgroup2", "rw")], {"cg/memory.max": text}) is None


def test_without_control_groups_there_is_no_limit(tmp_path):
    assert memory_groups(tmp_path) == ()
    assert allowance(()) == Allowance()
    assert pressure_file(()) is None
    assert cgroup_tree(tmp_path, ["nonsense", "::"], [], {}) is None


V2 = [("/", "/cg", "cgroup2", "rw")]


def stat(**counters):
    return "".join(f"{name} {value}\n" for name, value in counters.items())


def left_in(tmp_path, files, groups=("0::/user/app",), mounts=V2):
    cgroup_tree(tmp_path, groups, mounts, files)
    return allowance(memory_groups(tmp_path / "proc"))


def test_what_is_left_of_a_limit_counts_file_pages_as_free(tmp_path):
    files = {
        "cg/user/app/memory.max": "1000\n",
        "cg/user/app/memory.current": "900\n",
        "cg/user/app/memory.stat": stat(anon=500, file=400, inactive_file=300, active_file=50, shmem=50),
    }
    assert left_in(tmp_path, files) == Allowance(1000, (450, 1000))


def test_the_group_with_the_least_left_counts_wherever_its_limit_is(tmp_path):
    files = {
        "cg/user/app/memory.max": "1000\n",
        "cg/user/app/memory.current": "300\n",
        "cg/user/app/memory.stat": stat(inactive_file=0),
        "cg/user/memory.max": "5000\n",
        "cg/user/memory.current": "4900\n",
        "cg/user/memory.stat": stat(inactive_file=20),
        "cg/memory.current": "9000\n",
    }
    found = left_in(tmp_path, files)
    assert found == Allowance(1000, (120, 5000))
    assert found.available == 120


def test_a_group_that_is_slowed_down_at_a_mark_is_limited_there(tmp_path):
    files = {"cg/user/app/memory.max": "max\n", "cg/user/app/memory.high": "700\n"}
    files["cg/user/app/memory.current"] = "100\n"
    assert left_in(tmp_path, files) == Allowance(700, (600, 700))


def test_version_one_counts_the_groups_inside_as_well(tmp_path):
    folder = "cg/memory/job"
    files = {
        f"{folder}/memory.limit_in_bytes": "1000\n",
        f"{folder}/memory.usage_in_bytes": "900\n",
        f"{folder}/memory.stat": stat(inactive_file=1, active_file=2, total_inactive_file=100, total_active_file=200),
    }
    mounts = [("/", "/cg/memory", "cgroup", "rw,memory")]
    assert left_in(tmp_path, files, ["4:memory:/job", "0::/"], mounts) == Allowance(1000, (400, 1000))


@pytest.mark.parametrize("text", ["", "inactive_file", "inactive_file many\nactive_file -1\n", "\x00\xff 1\n"])
def test_counters_that_are_not_understood_make_nothing_free(tmp_path, text):
    files = {"cg/user/app/memory.max": "1000\n", "cg/user/app/memory.current": "900\n"}
    assert left_in(tmp_path, {**files, "cg/user/app/memory.stat": text}) == Allowance(1000, (100, 1000))


def test_usage_beyond_the_limit_or_below_the_file_pages_is_no_negative_number(tmp_path):
    files = {"cg/user/app/memory.max": "1000\n", "cg/user/app/memory.current": "1500\n"}
    found = left_in(tmp_path, files)
    assert (found.available, found.tightest) == (0, (0, 1000))
    (tmp_path / "cg/user/app/memory.current").write_text("100\n")
    (tmp_path / "cg/user/app/memory.stat").write_text(stat(inactive_file=300))
    assert allowance(memory_groups(tmp_path / "proc")).available == 1000


def test_a_limit_without_usage_leaves_nothing_known(tmp_path):
    found = left_in(tmp_path, {"cg/user/app/memory.max": "1000\n"})
    assert (found.limit, found.available) == (1000, None)


def test_a_group_that_was_removed_limits_nothing(tmp_path):
    files = {"cg/user/app/memory.max": "1000\n", "cg/user/app/memory.current": "1500\n"}
    assert left_in(tmp_path, files).limit == 1000
    groups = memory_groups(tmp_path / "proc")
    shutil.rmtree(tmp_path / "cg/user/app")
    assert allowance(groups) == Allowance()


def test_the_own_groups_stalls_are_told_unless_it_is_the_root(tmp_path):
    assert left_in(tmp_path, {"cg/user/app/cgroup.type": "domain\n", "cg/user/cgroup.type": "domain\n"}) == Allowance()
    assert pressure_file(memory_groups(tmp_path / "proc")) == tmp_path / "cg/user/app/memory.pressure"
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    assert pressure_file(memory_groups(tmp_path / "proc")) is None
