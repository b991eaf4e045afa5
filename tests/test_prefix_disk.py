"""Prefixes on the disk: they come back bit for bit, or not at all."""

from __future__ import annotations

import threading
from queue import SimpleQueue

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import ArraysCache, CacheList, ChunkedKVCache, KVCache, QuantizedKVCache, RotatingKVCache
from prefix_store import (
    IDENTITY,
    OTHER,
    PLENTY,
    answer,
    contents,
    disk_at,
    disk_in,
    entry_for,
    entry_of,
    fetch,
    files_in,
    filled,
    folder_at,
    loaded,
    run_child,
    store,
    tokens_for,
)
from structlog.testing import capture_logs
from tiny_kinds import HYBRID, SLIDING, kind_model

from mlxd.engines import prefix_files
from mlxd.engines.backend import mlx_backend
from mlxd.engines.cache_layers import CacheShape
from mlxd.engines.kept_prefixes import KeptPrefixes, PrefixLimits
from mlxd.engines.lanes import Lane
from mlxd.engines.prefix_disk import PrefixDisk


@pytest.fixture
def kinds(tiny_model):
    return {"plain": tiny_model, "hybrid": kind_model("hybrid", HYBRID), "sliding": kind_model("sliding", SLIDING)}


@pytest.mark.parametrize("count", [40, 300])
@pytest.mark.parametrize("kind", ["plain", "hybrid", "sliding"])
def test_an_entry_comes_back_bit_for_bit_and_answers_go_on_alike(kinds, tmp_path, kind, count):
    entry = entry_for(kinds[kind], "a", count)
    prompt = (*entry.tokens.tolist(), *tokens_for("more", 30))
    cold, _ = answer(loaded(kinds[kind]), prompt)
    with disk_at(tmp_path) as disk:
        store(disk, entry)
    with disk_at(tmp_path) as disk:
        key, length = disk.find(prompt)
        back = fetch(disk, key)
    assert length == len(entry.tokens)
    assert contents(back.layers) == contents(entry.layers)
    assert (back.tokens.tolist(), back.nbytes, back.trimmable) == (entry.tokens.tolist(), entry.nbytes, entry.trimmable)
    assert answer(loaded(kinds[kind]), prompt, back.layers, length)[0] == cold


@pytest.mark.parametrize("kind", ["plain", "hybrid", "sliding"])
def test_another_process_continues_from_what_one_stored(kinds, tmp_path, kind):
    stats = run_child(kinds[kind], tmp_path, IDENTITY, "a", "b")
    assert (stats["entries"], stats["writes"], stats["failures"]) == (2, 2, 0)
    with disk_at(tmp_path) as disk:
        for word in "ab":
            prompt = (*entry_for(kinds[kind], word).tokens.tolist(), *tokens_for("more", 20))
            key, length = disk.find(prompt)
            assert length == len(prompt) - 20
            expected, _ = answer(loaded(kinds[kind]), prompt)
            assert answer(loaded(kinds[kind]), prompt, fetch(disk, key).layers, length)[0] == expected


def test_an_entry_may_be_made_on_a_lane_that_is_gone_when_it_is_written(micro_model, tmp_path):
    lane, entries = Lane("maker", mlx_backend), []

    def make(open_backend) -> None:
        open_backend()
        layers = KVCache()
        layers.update_and_fetch(mx.random.normal((1, 2, 40, 8)), mx.random.normal((1, 2, 40, 8)))
        entries.append(entry_of([layers], range(40)))

    lane.run(make)
    lane.stop()
    assert lane.join(30)
    with disk_at(tmp_path) as disk:
        store(disk, *entries)
        back = fetch(disk, disk.find(range(50))[0])
    assert contents(back.layers) == contents(entries[0].layers)


def recurrent() -> ArraysCache:
    cache = ArraysCache(2)
    cache[0] = mx.random.normal((1, 3, 4)).astype(mx.float16)
    return cache


def test_every_kind_of_cache_comes_back_bit_for_bit(tmp_path):
    quantized = filled(QuantizedKVCache(group_size=32), dtype=mx.float32)
    layers = [
        filled(KVCache()),
        filled(RotatingKVCache(16)),
        filled(ChunkedKVCache(16)),
        quantized,
        recurrent(),
        CacheList(filled(KVCache()), recurrent()),
        *(filled(KVCache(), dtype=mx.float16) for _ in range(8)),
    ]
    entry = entry_of(layers, range(24))
    with disk_at(tmp_path) as disk:
        store(disk, entry)
        back = fetch(disk, disk.find(range(30))[0])
        assert disk.stats().failures == 0
    assert contents(back.layers) == contents(layers)


def test_a_cache_that_mlx_lm_could_not_read_back_is_not_written(tmp_path):
    class OwnCache(KVCache):
        pass

    with disk_at(tmp_path) as disk, capture_logs() as logs:
        store(disk, entry_of([filled(OwnCache())], range(24)), entry_of([filled(OwnCache())], range(1, 24)))
        assert (disk.stats().failures, disk.stats().entries) == (2, 0)
    assert [line["kind"] for line in logs if line["event"] == "prefix_disk.failed"] == ["arrays"]
    assert not files_in(tmp_path)


def test_of_a_prompt_the_longest_prefix_is_found_without_its_last_token(kinds, tmp_path):
    tokens = tokens_for("a", 200)
    for kind, found in (("plain", 99), ("sliding", None)):
        entry = entry_for(kinds[kind], "a", 150)
        with disk_at(tmp_path, (IDENTITY if kind == "plain" else OTHER)) as disk:
            store(disk, entry)
            exact = disk.find(entry.tokens)
            assert (exact and exact[1]) == (len(entry.tokens) - 1 if kind == "plain" else None)
            cut = disk.find(tokens[:100])
            assert (cut and cut[1]) == found
            assert disk.find((*entry.tokens.tolist(), 9))[1] == len(entry.tokens)
            assert disk.find(tokens_for("b", 100)) is None
            assert disk.find(tokens[:16]) is None
            assert disk.find(()) is None


def test_a_models_entries_are_not_found_by_another(micro_model, tmp_path):
    with folder_at(tmp_path) as folder, disk_in(folder) as disk, disk_in(folder, OTHER) as other:
        store(disk, entry_for(micro_model, "a"))
        assert disk.find(tokens_for("a", 100)) is not None
        assert other.find(tokens_for("a", 100)) is None


def test_what_is_found_has_a_key_and_a_size(tmp_path):
    tokens = np.arange(40, dtype=np.int32)
    with disk_at(tmp_path) as disk:
        entry = entry_of([filled(KVCache(), 40)], tokens)
        store(disk, entry)
        assert disk.find(range(60)) == (prefix_files.prefix_key(tokens), 40)
        assert disk.nbytes(prefix_files.prefix_key(tokens)) == entry.nbytes


def test_a_key_is_a_name_and_never_a_path(micro_model, tmp_path):
    with disk_at(tmp_path) as disk:
        store(disk, entry_for(micro_model, "a"))
        key, _ = disk.find(tokens_for("a", 100))
        for other in ("", f"../{IDENTITY}/{key}", f"{key}.json", "\0"):
            assert fetch(disk, other) is None
            assert disk.nbytes(other) == 0
        assert disk.stats().entries == 1
        for identity in ("", "..", "A" * 32, f"{IDENTITY}/", "0" * 31):
            with pytest.raises(ValueError, match="32 hexadecimal digits"):
                PrefixDisk(disk._folder, identity, PLENTY)


def test_prompts_that_begin_alike_at_the_same_time_wait_for_one_reading(micro_model, tmp_path):
    prompt = tokens_for("a", 100)
    with folder_at(tmp_path) as folder, disk_in(folder) as disk:
        store(disk, entry_for(micro_model, "a"))
        kept = KeptPrefixes(PrefixLimits(PLENTY, 0), CacheShape(), disk)
        may_read, read = threading.Event(), SimpleQueue()
        folder.submit(lambda: may_read.wait(30))
        assert all(kept.restore(prompt, read.put) for _ in range(4))
        may_read.set()
        for _ in range(4):
            kept.adopt(read.get(timeout=30))
        assert disk.stats().reads == 1
        assert kept.cached_tokens(prompt) == 99
        assert not kept.restore(prompt, read.put)


def test_a_disk_that_is_busy_holds_no_unload_up_for_longer_than_allowed(micro_model, tmp_path):
    may_go_on = threading.Event()
    with folder_at(tmp_path) as folder:
        disk = PrefixDisk(folder, IDENTITY, PLENTY)
        disk.open()
        kept = KeptPrefixes(PrefixLimits(PLENTY, 0), CacheShape(), disk)
        kept.adopt(entry_for(micro_model, "a"))
        folder.submit(lambda: may_go_on.wait(30))
        kept.close(0.05)
        assert kept.nbytes == 0
        assert not may_go_on.is_set()
        may_go_on.set()
