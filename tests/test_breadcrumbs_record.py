"""Which models are suspect after an unclean end, and what of a file is believed."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import msgspec
import pytest
from msgspec import structs

from mlxd.daemon.breadcrumbs_boot import boot_id, darwin_boot_id, linux_boot_id
from mlxd.daemon.breadcrumbs_file import RecordUnread, read_record, write_record
from mlxd.daemon.breadcrumbs_record import (
    MAX_SUSPECTS,
    VERSION,
    ResidentModel,
    RunRecord,
    Suspect,
    machine_restarted,
    suspects_after,
)
from mlxd.daemon.config_file import MAX_BYTES


def killed(boot="one", **what):
    return RunRecord(VERSION, boot, 10.0, **what)


def skipped(suspects):
    return {name for name, suspect in suspects.items() if suspect.skip}


def followed(last, boot, **what):
    """The next run after `last`, ended by a kill."""
    return killed(boot, suspects=suspects_after(last, boot), **what)


@pytest.mark.parametrize("boot", ["one", "two", None])
def test_a_model_that_was_loading_is_suspect_whatever_ended(boot):
    suspects = suspects_after(killed(loading=("a",)), boot)
    assert suspects == {"a": Suspect(1, "loading", 10.0, {"one": False, "two": True, None: None}[boot])}


@pytest.mark.parametrize(("boot", "skip"), [("one", False), ("two", True), (None, True)])
def test_a_model_at_work_is_done_without_unless_only_the_daemon_was_killed(boot, skip):
    suspects = suspects_after(killed(at_work={"a": ("f1", "f2")}), boot)
    assert suspects["a"].fingerprints == ("f1", "f2")
    assert suspects["a"].skip == skip


def test_a_model_at_work_in_two_kills_in_a_row_is_done_without():
    first = killed(at_work={"a": ()})
    second = followed(first, "one", at_work={"a": ("f",)})
    suspects = suspects_after(second, "one")
    assert (suspects["a"].ends, suspects["a"].skip) == (2, True)


@pytest.mark.parametrize("between", [{"ended": True}, {}, {"at_work": {"b": ()}}], ids=["in order", "idle", "other"])
def test_two_kills_at_work_with_an_end_without_it_in_between_are_not_in_a_row(between):
    second = followed(killed(at_work={"a": ()}), "one", **between)
    third = followed(second, "one", at_work={"a": ()})
    assert "a" not in third.suspects
    assert not skipped(suspects_after(third, "one"))


def test_a_suspect_is_done_without_once_and_remembered_once_more():
    second = followed(killed(loading=("a",)), "one", ended=True)
    third = followed(second, "one", ended=True)
    assert [skipped(run.suspects) for run in (second, third)] == [{"a"}, set()]
    assert third.suspects["a"].ends == 1
    assert suspects_after(third, "one") == {}


def test_a_model_that_failed_again_when_it_was_tried_again_is_done_without_until_it_serves():
    second = followed(killed(loading=("a",)), "two", ended=True)
    third = followed(second, "two", loading=("a",))
    run = third
    for boot in ("three", "three", "four"):
        run = followed(run, boot, ended=True)
        assert run.suspects["a"].ends == 2
        assert skipped(run.suspects) == {"a"}


def test_what_was_going_on_before_an_orderly_end_is_nobodys_fault():
    assert suspects_after(killed(loading=("a",), at_work={"b": ()}, ended=True), "two") == {}


def test_as_many_suspects_are_remembered_as_a_file_may_hold():
    old = {f"old{number}": Suspect(2, "loading", float(number), True) for number in range(MAX_SUSPECTS)}
    suspects = suspects_after(structs.replace(killed(loading=("new",), suspects=old), at=1e9), "two")
    assert len(suspects) == MAX_SUSPECTS
    assert {"new", f"old{MAX_SUSPECTS - 1}"} < suspects.keys()
    assert "old0" not in suspects


@pytest.mark.parametrize(("before", "now", "said"), [("a", "a", False), ("a", "b", True), (None, "a", None)])
def test_the_machine_has_restarted_if_it_has_another_name(before, now, said):
    assert machine_restarted(killed(before), now) is said


# ---- the file


WHOLE = RunRecord(
    VERSION,
    "boot",
    1.5,
    loading=("a",),
    at_work={"org/b": ("0123456789ab",)},
    resident=(ResidentModel("org/b", "text"),),
    suspects={"c": Suspect(2, "at_work", 1.0, None, ("ffffffffffff",), skip=True)},
)


def test_what_is_written_is_read_and_only_its_owner_may(tmp_path):
    file = tmp_path / "made" / "breadcrumbs.json"
    assert read_record(file) is None
    write_record(file, structs.replace(WHOLE, at=0.0))
    write_record(file, WHOLE)
    assert read_record(file) == WHOLE
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    assert file.stat().st_mode & 0o077 == 0


def good(**changes):
    return msgspec.json.encode({**msgspec.to_builtins(WHOLE), **changes}).decode()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "\x00" * 100,
        good()[:-20],
        good(version=VERSION + 1),
        good(version=0),
        good(loading="a"),
        good(at_work={"a": "f"}),
        good(suspects={"a": {"ends": 0, "was": "loading", "at": 1.0, "machine_restarted": None}}),
        good(suspects={"a": {"ends": 1, "was": "dreaming", "at": 1.0, "machine_restarted": None}}),
        good(more="x" * MAX_BYTES),
        "[" * 100_000,
    ],
    ids=range(14),
)
def test_a_file_that_is_not_right_says_nothing(tmp_path, text):
    file = tmp_path / "f"
    file.write_text(text)
    with pytest.raises(RecordUnread, match=str(file)):
        read_record(file)
    write_record(file, WHOLE)
    assert read_record(file) == WHOLE


def test_bytes_that_are_no_text_and_what_is_no_file_say_nothing(tmp_path):
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "bytes", tmp_path / "pipe", tmp_path):
        with pytest.raises(RecordUnread):
            read_record(path)


def test_a_write_that_fails_leaves_the_file_as_it_was_and_nothing_beside_it(tmp_path):
    file = tmp_path / "f"
    write_record(file, WHOLE)
    write = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10));"
        "from pathlib import Path; from mlxd.daemon.breadcrumbs_file import write_record;"
        "from mlxd.daemon.breadcrumbs_record import RunRecord;"
        f"write_record(Path({str(file)!r}), RunRecord(1, None, 2.0))"
    )
    failed = subprocess.run(
        [sys.executable, "-I", "-c", write], capture_output=True, text=True, timeout=60, check=False
    )
    assert "File too large" in failed.stderr
    assert read_record(file) == WHOLE
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


# ---- the name of a start of the machine


@pytest.mark.skipif(sys.platform != "linux", reason="Linux's own")
def test_a_start_of_the_machine_has_one_name():
    assert boot_id() == boot_id()
    assert len(boot_id()) == 36


def test_a_kernel_that_does_not_say_has_none(tmp_path):
    assert linux_boot_id(tmp_path / "none") is None
    (tmp_path / "empty").write_text("\n")
    assert linux_boot_id(tmp_path / "empty") is None
    (tmp_path / "odd").write_bytes(b"\xff")
    assert linux_boot_id(tmp_path / "odd") is None


class SystemLibrary:
    """The part of macOS's that is asked."""

    def __init__(self, answers):
        self._answers = answers

    def sysctlbyname(self, name, buffer, size, new, new_size):
        answer = self._answers.get(name)
        if answer is None or new is not None or new_size.value:
            return -1
        assert size._obj.value == ctypes.sizeof(buffer)
        buffer.value = answer
        return 0


def test_macos_tells_its_boot_session():
    uuid = b"8A1B4A4E-0000-4000-8000-1234567890AB"
    assert darwin_boot_id(SystemLibrary({b"kern.bootsessionuuid": uuid})) == uuid.decode()
    assert darwin_boot_id(SystemLibrary({})) is None
