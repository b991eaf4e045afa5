"""Stored prefixes: what is kept and what goes, what waits to be written, and how a store ends."""

from __future__ import annotations

import os
import random
import threading

import pytest
from prefix_store import (
    IDENTITY,
    OTHER,
    PLENTY,
    Blocked,
    answer,
    contents,
    data_file,
    disk_at,
    disk_in,
    entry_for,
    fetch,
    files_in,
    folder_at,
    loaded,
    room_for,
    settle,
    store,
    tokens_for,
    total,
)
from tiny_kinds import HYBRID, kind_model

from mlxd.engines import prefix_files
from mlxd.engines.prefix_disk import PrefixDisk


@pytest.fixture
def kinds(tiny_model):
    return {"plain": tiny_model, "hybrid": kind_model("hybrid", HYBRID)}


def test_another_bound_counts_from_the_next_write(micro_model, tmp_path):
    entries = {word: entry_for(micro_model, word) for word in "abcde"}
    one, three = room_for(1, entries["a"]), room_for(3, entries["a"])
    with folder_at(tmp_path, one) as folder, disk_in(folder) as disk:
        store(disk, entries["a"], entries["b"])
        assert total(tmp_path) <= one
        folder.resize(three)
        store(disk, entries["c"], entries["d"])
        assert one < total(tmp_path) <= three
        folder.resize(one)
        store(disk, entries["e"])
        assert total(tmp_path) <= one


def test_all_models_together_stay_within_the_bound_and_the_least_recently_used_go_first(micro_model, tmp_path):
    entries = {word: entry_for(micro_model, word) for word in "abcdefg"}
    bound = room_for(3, entries["a"])
    with folder_at(tmp_path, bound) as folder, disk_in(folder) as one, disk_in(folder, OTHER) as two:
        store(one, entries["a"])
        store(two, entries["b"])
        store(one, entries["c"])
        assert fetch(one, one.find(tokens_for("a", 100))[0]) is not None
        store(two, entries["d"])
        assert total(tmp_path) <= bound
        assert two.find(tokens_for("b", 100)) is None
        held = [one.find(tokens_for("a", 100)), one.find(tokens_for("c", 100)), two.find(tokens_for("d", 100))]
        assert None not in held
    # the order of use outlives the process
    with folder_at(tmp_path, bound) as folder, disk_in(folder) as one, disk_in(folder, OTHER) as two:
        store(two, entries["e"])
        assert one.find(tokens_for("c", 100)) is None
        assert one.find(tokens_for("a", 100)) is not None
        store(two, entries["f"], entries["g"])
        assert one.stats().entries == 0
        assert two.stats().entries == 3
        assert total(tmp_path) <= bound


def test_a_model_stays_within_its_share_at_its_own_cost(micro_model, tmp_path):
    entries = {word: entry_for(micro_model, word) for word in "abcd"}
    share = room_for(2, entries["a"])
    with folder_at(tmp_path) as folder, disk_in(folder, OTHER) as other, disk_in(folder, max_bytes=share) as disk:
        store(other, entries["a"])
        store(disk, *entries.values())
        assert (other.stats().entries, disk.stats().entries) == (1, 2)
        assert [disk.find(tokens_for(word, 100)) is not None for word in "abcd"] == [False, False, True, True]


def test_a_smaller_bound_is_kept_from_the_next_start(micro_model, tmp_path):
    entries = [entry_for(micro_model, word) for word in "abc"]
    with disk_at(tmp_path) as disk:
        store(disk, *entries)
    bound = room_for(1, entries[0])
    with folder_at(tmp_path, bound) as folder, disk_in(folder, OTHER):
        assert total(tmp_path) <= bound
    with disk_at(tmp_path) as disk:
        assert disk.find(tokens_for("c", 100)) is not None


def test_an_entry_from_the_future_grows_old_like_others(micro_model, tmp_path):
    with disk_at(tmp_path) as disk:
        store(disk, entry_for(micro_model, "a"))
    for file in files_in(tmp_path):
        os.utime(file, (2**33, 2**33))
    with disk_at(tmp_path) as disk:
        store(disk, entry_for(micro_model, "b"))
    entry = entry_for(micro_model, "c")
    with disk_at(tmp_path, max_bytes=room_for(2, entry)) as disk:
        store(disk, entry)
        assert disk.find(tokens_for("a", 100)) is None
        assert disk.find(tokens_for("b", 100)) is not None


def test_an_entry_bigger_than_the_bound_is_not_written_and_drives_out_nothing(micro_model, tmp_path):
    small, big = entry_for(micro_model, "a", 40), entry_for(micro_model, "b", 1000)
    with folder_at(tmp_path, big.nbytes + 1) as folder, disk_in(folder) as disk:
        store(disk, small, big)
        assert disk.find(tokens_for("a", 40)) is not None
        assert disk.stats().entries == 1


def test_the_same_tokens_are_written_once(micro_model, tmp_path):
    entry = entry_for(micro_model, "a")
    with folder_at(tmp_path) as folder, disk_in(folder) as disk, disk_in(folder) as twin:
        store(disk, entry, entry)
        store(twin, entry)
        assert (disk.stats().writes, twin.stats().writes, twin.stats().entries) == (1, 0, 1)
    with disk_at(tmp_path) as disk:
        store(disk, entry)
        assert (disk.stats().writes, disk.stats().entries) == (0, 1)


def test_a_longer_entry_replaces_its_prefixes_where_it_can_be_cut_back(kinds, tmp_path):
    for identity, kind, kept in ((IDENTITY, "plain", 1), (OTHER, "hybrid", 2)):
        short, entry = entry_for(kinds[kind], "a", 60), entry_for(kinds[kind], "b", 60)
        _, long = answer(loaded(kinds[kind]), (*short.tokens.tolist(), *tokens_for("more", 40)))
        with disk_at(tmp_path, identity) as disk:
            store(disk, short, entry, long)
            assert disk.stats().entries == kept + 1
            assert disk.find((*short.tokens.tolist(), 7))[1] == len(short.tokens)
            # what a held entry makes superfluous is not written again
            store(disk, short)
            assert (disk.stats().entries, disk.stats().writes) == (kept + 1, 3)
        assert len(files_in(tmp_path, identity)) == 2 * (kept + 1)


def test_a_longer_entry_needs_no_room_beside_the_prefix_that_it_replaces(micro_model, tmp_path):
    other, short = entry_for(micro_model, "b", 300), entry_for(micro_model, "a", 300)
    _, long = answer(loaded(micro_model), (*short.tokens.tolist(), *tokens_for("more", 10)))
    bound = int((other.nbytes + long.nbytes) * 1.05) + 30_000
    assert bound < other.nbytes + short.nbytes + long.nbytes
    with disk_at(tmp_path, max_bytes=bound) as disk:
        store(disk, other, short, long)
        assert disk.find((*other.tokens.tolist(), 7)) is not None
        assert disk.find((*long.tokens.tolist(), 7))[1] == len(long.tokens)


def test_two_stores_of_one_model_share_its_entries_until_the_last_closes(micro_model, tmp_path):
    with folder_at(tmp_path) as folder:
        with disk_in(folder) as one:
            with disk_in(folder) as two:
                store(one, entry_for(micro_model, "a"))
                key, _ = two.find(tokens_for("a", 100))
            assert fetch(one, key) is not None
        assert folder.entries(IDENTITY) == ()
        with disk_in(folder) as one, disk_in(folder) as two:
            data_file(tmp_path).write_bytes(b"")
            assert fetch(one, key) is None
            assert two.find(tokens_for("a", 100)) is None


def test_nothing_is_found_before_the_files_were_read(micro_model, tmp_path):
    with disk_at(tmp_path) as disk:
        store(disk, entry_for(micro_model, "a"))
    with folder_at(tmp_path) as folder:
        disk = PrefixDisk(folder, IDENTITY, PLENTY)
        with Blocked(folder):
            disk.open()
            assert disk.find(tokens_for("a", 100)) is None
            disk.store(entry_for(micro_model, "b"))
        settle(folder)
        assert disk.find(tokens_for("a", 100)) is not None
        assert disk.find(tokens_for("b", 100)) is not None
        assert disk.close(30)


def test_what_waits_to_be_written_is_bounded_and_the_newest_stays(micro_model, tmp_path, monkeypatch):
    entries = [entry_for(micro_model, word) for word in "abcd"]
    with disk_at(tmp_path) as disk:
        with Blocked(disk._folder):
            for entry in entries[:3]:
                disk.store(entry)
            assert disk.stats().queued_bytes == 2 * entries[0].nbytes
            monkeypatch.setattr("mlxd.engines.prefix_disk.MOST_QUEUED_BYTES", entries[0].nbytes + 1)
            disk.store(entries[3])
            assert disk.stats().queued_bytes == entries[0].nbytes
        settle(disk._folder)
        assert [disk.find(tokens_for(word, 100)) is not None for word in "abcd"] == [False, False, False, True]
        assert disk.stats().queued_bytes == 0


def test_reads_go_before_writes(micro_model, tmp_path):
    order = []
    with disk_at(tmp_path) as disk:
        store(disk, entry_for(micro_model, "a"))
        key, _ = disk.find(tokens_for("a", 100))
        with Blocked(disk._folder):
            disk.store(entry_for(micro_model, "b"))
            disk._folder.submit(lambda: order.append("written"))
            disk.fetch(key, lambda entry: order.append(entry is not None))
        settle(disk._folder)
    assert order == [True, "written"]


def test_close_writes_what_is_queued_and_the_last_entries(micro_model, tmp_path):
    entries = [entry_for(micro_model, word) for word in "abcdef"]
    with folder_at(tmp_path) as folder:
        disk = PrefixDisk(folder, IDENTITY, PLENTY)
        disk.open()
        disk.store(entries[0])
        assert disk.close(60, last=entries[1:])
    with disk_at(tmp_path) as disk:
        assert disk.stats().entries == len(entries)


def test_close_gives_up_at_its_timeout_and_leaves_no_garbage(micro_model, tmp_path, monkeypatch):
    began, go = threading.Event(), threading.Event()
    write = prefix_files._write_all

    def slow_write(file, piece):
        began.set()
        go.wait(30)
        write(file, piece)

    monkeypatch.setattr(prefix_files, "_write_all", slow_write)
    with folder_at(tmp_path) as folder:
        disk = PrefixDisk(folder, IDENTITY, PLENTY)
        disk.open()
        disk.store(entry_for(micro_model, "a"))
        assert began.wait(30)
        disk.store(entry_for(micro_model, "b"))
        assert not disk.close(0.05)
        assert disk.stats().entries == 0
        go.set()
    assert not files_in(tmp_path)
    assert (disk._queue, disk._writing) == (type(disk._queue)(), None)


def test_after_close_every_call_does_nothing(micro_model, tmp_path):
    entry = entry_for(micro_model, "a")
    with folder_at(tmp_path) as folder:
        disk = PrefixDisk(folder, IDENTITY, PLENTY)
        disk.open()
        assert disk.close(30)
        disk.open()
        disk.store(entry)
        assert disk.find(entry.tokens) is None
        assert fetch(disk, "a" * 32) is None
        assert disk.nbytes("a" * 32) == 0
        assert disk.close(0)
        assert disk.stats().writes == 0
    # nor does a store whose folder was closed before it
    late = PrefixDisk(folder, IDENTITY, PLENTY)
    late.open()
    late.store(entry)
    assert fetch(late, "a" * 32) is None
    assert late.close(0)


def test_a_store_that_was_not_opened_does_nothing(micro_model, tmp_path):
    with folder_at(tmp_path / "store") as folder:
        disk = PrefixDisk(folder, IDENTITY, PLENTY)
        disk.store(entry_for(micro_model, "a"))
        assert disk.close(30, last=[entry_for(micro_model, "a")])
    assert not (tmp_path / "store").exists()


def test_a_fetch_is_answered_once_even_if_the_store_closes_or_the_caller_raises(micro_model, tmp_path):
    answers = []
    with folder_at(tmp_path) as folder:
        disk = PrefixDisk(folder, IDENTITY, PLENTY)
        disk.open()
        store(disk, entry_for(micro_model, "a"))
        key, _ = disk.find(tokens_for("a", 100))
        disk.fetch(key, lambda entry: answers.append(entry.nope))
        settle(folder)
        assert disk.stats().failures == 1
        with Blocked(folder):
            disk.fetch(key, answers.append)
            assert disk.close(30)
        settle(folder)
    assert answers == [None]


def test_the_folder_serves_stores_from_many_threads(micro_model, tmp_path):
    entries = [entry_for(micro_model, word, 40) for word in "abcdefgh"]
    bound = room_for(5, entries[0])
    errors = []

    def use(folder, identity, seed):
        rng = random.Random(seed)
        disk = PrefixDisk(folder, identity, PLENTY)
        disk.open()
        for _ in range(30):
            entry = rng.choice(entries)
            found = disk.find((*entry.tokens.tolist(), 1))
            back = fetch(disk, found[0]) if found is not None else disk.store(entry)
            if back is not None and contents(back.layers) != contents(entry.layers):
                errors.append(found)
            disk.stats()
        assert disk.close(30)

    with folder_at(tmp_path, bound) as folder:
        threads = [threading.Thread(target=use, args=(folder, (IDENTITY, OTHER)[n % 2], n)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
    assert not errors
    assert 0 < total(tmp_path) <= bound
