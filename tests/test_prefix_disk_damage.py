"""Prefixes on a disk that is full, damaged or hostile, and processes that are killed while they write."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prefix_store import (
    IDENTITY,
    OTHER,
    child,
    contents,
    data_file,
    disk_at,
    disk_in,
    entry_for,
    fetch,
    files_in,
    kill_when_stopped,
    run_child,
    store,
    tokens_for,
)
from structlog.testing import capture_logs

from mlxd.engines import prefix_files
from mlxd.engines.prefix_folder import WRITE_PAUSE


@pytest.mark.parametrize(
    ("option", "at"), [("byte", 0.0), ("byte", 0.4), ("byte", 1.0), ("byte", 1.5), ("sync", 1), ("sync", 2)]
)
def test_a_process_killed_while_it_writes_leaves_whole_entries_and_no_garbage(micro_model, tmp_path, option, at):
    with disk_at(tmp_path) as disk:
        store(disk, entry_for(micro_model, "a"))
    sidecar, data = (file.stat().st_size for file in files_in(tmp_path))
    # parts of the data file, above 1 of the sidecar; or the syncs of the data and of the sidecar
    count = at if option == "sync" else 1 + int(min(at, 1) * (data - 1) + max(at - 1, 0) * sidecar)
    kill_when_stopped(child(micro_model, tmp_path, IDENTITY, f"--stop-at-{option}", count, "b"))
    assert len(files_in(tmp_path)) > 2
    with disk_at(tmp_path) as disk:
        assert len(files_in(tmp_path)) == 2
        assert fetch(disk, disk.find(tokens_for("a", 100))[0]) is not None
        assert disk.find(tokens_for("b", 100)) is None
        store(disk, entry_for(micro_model, "b"))
        assert disk.stats().entries == 2


def test_a_process_killed_after_its_last_rename_has_stored_the_entry(micro_model, tmp_path):
    kill_when_stopped(child(micro_model, tmp_path, IDENTITY, "--stop-at-sync", 3, "a"))
    with disk_at(tmp_path) as disk:
        back = fetch(disk, disk.find(tokens_for("a", 100))[0])
    assert contents(back.layers) == contents(entry_for(micro_model, "a").layers)


def damage(path: Path, rng: random.Random, how: str) -> None:
    content = bytearray(path.read_bytes())
    at = rng.randrange(len(content))
    if how == "truncated":
        del content[at:]
    elif how == "flipped":
        content[at] ^= 1 << rng.randrange(8)
    else:
        content += b"x"
    path.write_bytes(content)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("how", ["truncated", "flipped", "longer"])
@pytest.mark.parametrize("suffix", [".safetensors", ".json"])
def test_a_damaged_file_is_a_miss_and_goes(micro_model, tmp_path, seed, how, suffix):
    entry = entry_for(micro_model, "a", 40)
    with disk_at(tmp_path) as disk:
        store(disk, entry)
    damage(next(file for file in files_in(tmp_path) if file.suffix == suffix), random.Random(seed), how)
    with disk_at(tmp_path) as disk:
        found = disk.find((*entry.tokens.tolist(), 5))
        assert found is None or (suffix, how) == (".safetensors", "flipped")
        assert found is None or fetch(disk, found[0]) is None
        assert disk.find((*entry.tokens.tolist(), 5)) is None
        assert disk.stats().entries == 0
        store(disk, entry)
        assert fetch(disk, disk.find((*entry.tokens.tolist(), 5))[0]) is not None


@pytest.mark.parametrize("how", ["truncated", "flipped", "longer", "gone", "link"])
def test_a_file_damaged_under_an_open_store_is_a_miss_and_goes(micro_model, tmp_path, how):
    with disk_at(tmp_path / "store") as disk:
        store(disk, entry_for(micro_model, "a"))
        key, _ = disk.find(tokens_for("a", 100))
        file = data_file(tmp_path / "store")
        if how == "gone":
            file.unlink()
        elif how == "link":
            file.rename(tmp_path / "elsewhere")
            file.symlink_to(tmp_path / "elsewhere")
        else:
            damage(file, random.Random(0), how)
        assert fetch(disk, key) is None
        assert disk.find(tokens_for("a", 100)) is None
        assert (disk.stats().failures, disk.stats().reads) == (1, 0)
        assert not files_in(tmp_path / "store")
    assert how != "link" or (tmp_path / "elsewhere").stat().st_size > 1000


def test_a_data_file_with_a_right_checksum_and_wrong_content_is_a_miss(micro_model, tmp_path):
    with disk_at(tmp_path) as disk:
        store(disk, entry_for(micro_model, "a"))
        (stored,) = disk._folder.entries(IDENTITY)
    data_file(tmp_path).write_bytes(b"\xff" * 100)
    forged = prefix_files.StoredPrefix(
        stored.key, stored.tokens, 1, 100, True, prefix_files.hashlib.blake2b(b"\xff" * 100).hexdigest()
    )
    (tmp_path / IDENTITY / f"{stored.key}.json").write_bytes(prefix_files.encode_sidecar(forged))
    with disk_at(tmp_path) as disk:
        assert fetch(disk, disk.find(tokens_for("a", 100))[0]) is None
        assert (disk.stats().entries, disk.stats().failures) == (0, 1)


HOSTILE_SIDECARS = {
    "empty": b"",
    "not-json": b"\xff\xfe{",
    "list": b"[]",
    "deep": b'{"tokens":' + b"[" * 100_000,
    "huge-numbers": b'{"tokens":[' + b"9" * 5000 + b'],"nbytes":1e999,"size":-1,"trimmable":2,"checksum":[]}',
    "negative-tokens": b'{"tokens":[-1],"nbytes":0,"size":0,"trimmable":true,"checksum":"","format":1,"seal":""}',
    "unsealed": b'{"tokens":[1],"nbytes":0,"size":3,"trimmable":true,"checksum":"","format":1,"seal":""}',
    "path": b'{"tokens":[1],"file":"../../../etc/passwd"}',
    "next-format": b'{"tokens":[1],"nbytes":0,"size":3,"trimmable":true,"checksum":"","format":2,"seal":""}',
}


@pytest.mark.parametrize("content", HOSTILE_SIDECARS.values(), ids=HOSTILE_SIDECARS.keys())
def test_a_sidecar_of_nonsense_goes_with_its_data(tmp_path, content):
    model = tmp_path / IDENTITY
    model.mkdir()
    (model / f"{'a' * 32}.json").write_bytes(content)
    (model / f"{'a' * 32}.safetensors").write_bytes(b"abc")
    with disk_at(tmp_path) as disk:
        assert disk.stats().entries == 0
        assert disk.find(range(100)) is None
        assert not files_in(tmp_path)


@given(st.binary(max_size=200) | st.from_regex(rb'\{"tokens":\[[0-9,]*\],"nbytes":[0-9]+.*\}', fullmatch=True))
def test_no_content_of_a_sidecar_is_taken_that_was_not_written_for_its_name(content):
    with pytest.raises(prefix_files.BadEntry):
        prefix_files.decode_sidecar("a" * 32, content)


def test_a_sidecar_is_read_as_it_was_written_and_under_no_other_name():
    tokens = np.arange(30, dtype=np.int32)
    stored = prefix_files.StoredPrefix(prefix_files.prefix_key(tokens), tokens, 5, 6, False, "00")
    content = prefix_files.encode_sidecar(stored)
    back = prefix_files.decode_sidecar(stored.key, content)
    assert (back.key, back.tokens.tolist(), back.nbytes, back.size) == (stored.key, list(range(30)), 5, 6)
    assert (back.trimmable, back.checksum) == (False, "00")
    with pytest.raises(prefix_files.BadEntry):
        prefix_files.decode_sidecar("a" * 32, content)


def test_links_pipes_and_foreign_names_are_removed_and_never_followed(micro_model, tmp_path):
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / f"{'a' * 32}.json").write_text("precious")
    (victim / "notes").write_text("precious")
    folder = tmp_path / "store"
    model = folder / IDENTITY
    (model / "subfolder").mkdir(parents=True)
    (model / "subfolder" / "kept").write_text("not ours")
    (model / f"{'b' * 32}.json").symlink_to(victim / "notes")
    (model / f"{'b' * 32}.safetensors").symlink_to(victim / "notes")
    os.mkfifo(model / f"{'c' * 32}.json")
    os.mkfifo(model / f"{'c' * 32}.safetensors")
    (model / "..json").write_text("")
    (model / "\n\x1b[31m").write_text("")
    (model / f"{'A' * 32}.json").write_text("")
    (folder / OTHER).symlink_to(victim)
    (folder / "lock").write_text("the daemon's")
    with disk_at(folder) as disk, disk_in(disk._folder, OTHER) as other:
        store(disk, entry_for(micro_model, "a"))
        store(other, entry_for(micro_model, "a"))
        assert (disk.stats().entries, other.stats().entries) == (1, 1)
    assert {file.name for file in files_in(folder)} == {"subfolder", *(file.name for file in files_in(folder, OTHER))}
    assert not (folder / OTHER).is_symlink()
    assert sorted(file.read_text() for file in victim.iterdir()) == ["precious"] * 2
    assert (folder / "lock").read_text() == "the daemon's"
    assert (model / "subfolder" / "kept").exists()


def test_a_folder_that_becomes_a_link_is_not_written_through(micro_model, tmp_path):
    (tmp_path / "victim").mkdir()
    with disk_at(tmp_path / "store") as disk:
        (tmp_path / "store" / IDENTITY).symlink_to(tmp_path / "victim")
        store(disk, entry_for(micro_model, "a"))
        assert disk.stats().failures == 1
    assert not list((tmp_path / "victim").iterdir())


def test_files_are_for_their_owner_only(micro_model, tmp_path):
    with disk_at(tmp_path / "store") as disk:
        store(disk, entry_for(micro_model, "a"))
    assert {file.stat().st_mode & 0o777 for file in files_in(tmp_path / "store")} == {0o600}
    assert (tmp_path / "store" / IDENTITY).stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "store").stat().st_mode & 0o777 == 0o700


def test_a_write_that_the_system_refuses_leaves_nothing_behind(micro_model, tmp_path):
    stats = run_child(micro_model, tmp_path, IDENTITY, "--file-limit", 10_000, "a", "b")
    # after the first the disk is left alone for a while
    assert (stats["entries"], stats["writes"], stats["failures"]) == (0, 0, 1)
    assert not files_in(tmp_path)


def test_a_sidecar_that_the_system_refuses_takes_its_data_with_it(micro_model, tmp_path, monkeypatch):
    def no_rename_of_sidecars(path, target):
        if target.suffix == ".json":
            raise OSError(errno.EDQUOT, "Disk quota exceeded")
        path.rename(target)

    monkeypatch.setattr(Path, "replace", no_rename_of_sidecars)
    with disk_at(tmp_path) as disk:
        store(disk, entry_for(micro_model, "a"))
        assert disk.stats().failures == 1
    assert not files_in(tmp_path)


def test_a_full_disk_is_left_alone_for_a_while_and_logged_once(micro_model, tmp_path, monkeypatch):
    now, full, tries = [0.0], [True], []
    write = prefix_files._write_all

    def disk_write(file, piece):
        tries.append(len(piece))
        if full[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(file, piece)

    monkeypatch.setattr(prefix_files, "_write_all", disk_write)
    entries = [entry_for(micro_model, word) for word in "abcd"]
    with disk_at(tmp_path, clock=lambda: now[0]) as disk, capture_logs() as logs:
        store(disk, *entries[:2])
        assert (len(tries), disk.stats().failures) == (1, 1)
        now[0] += WRITE_PAUSE
        store(disk, entries[2])
        assert (len(tries), disk.stats().failures) == (2, 2)
        now[0] += WRITE_PAUSE
        full[0] = False
        store(disk, entries[3])
        assert disk.stats().entries == 1
        full[0] = True
        store(disk, entries[0])
    assert [(line["event"], line["kind"]) for line in logs] == [("prefix_disk.failed", "write")] * 2


def test_a_folder_that_cannot_be_made_stores_nothing_and_says_so_once(micro_model, tmp_path):
    (tmp_path / "file").write_text("")
    with capture_logs() as logs, disk_at(tmp_path / "file" / "store") as disk:
        store(disk, entry_for(micro_model, "a"))
        assert disk.find(tokens_for("a", 100)) is None
        assert fetch(disk, "a" * 32) is None
    assert [line["kind"] for line in logs] == ["open"]
