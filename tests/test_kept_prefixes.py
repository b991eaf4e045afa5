"""What a runner keeps of prompts, when memory or MLX do not play along."""

from types import SimpleNamespace

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ChunkedKVCache, KVCache

from mlxd.engines.cache_layers import CacheShape, check_batchable
from mlxd.engines.errors import LoadError, LoadFailure
from mlxd.engines.kept_prefixes import KeptPrefixes, PrefixLimits

TOKENS = 32


class Disk:
    """Remembers what it was given to write."""

    def __init__(self) -> None:
        self.stored = []

    def store(self, entry) -> None:
        self.stored.append(entry)


def layers(tokens: int = TOKENS) -> list[KVCache]:
    cache = KVCache()
    cache.update_and_fetch(mx.ones((1, 1, tokens, 8)), mx.ones((1, 1, tokens, 8)))
    return [cache]


def prompt(number: int) -> list[int]:
    return [number] * TOKENS


def kept(entries: int, disk: Disk | None = None) -> KeptPrefixes:
    return KeptPrefixes(PrefixLimits(entries * layers()[0].nbytes, 0), CacheShape(), disk)


def test_what_newer_prefixes_push_out_is_written():
    disk = Disk()
    prefixes = kept(2, disk)
    for number in range(3):
        prefixes.keep(layers(), prompt(number))
    assert [entry.tokens[0] for entry in disk.stored] == [0]


def test_a_trim_frees_at_once_and_leaves_nothing_to_be_written():
    disk = Disk()
    prefixes = kept(4, disk)
    for number in range(4):
        prefixes.keep(layers(), prompt(number))
    size = prefixes.nbytes // 4
    for left in (3, 2, 1, 0):
        assert prefixes.trim(prefixes.nbytes - size) == size
        assert prefixes.nbytes == left * size
    assert disk.stored == []


def test_a_cache_that_cannot_be_copied_is_not_kept_and_nothing_is_raised():
    class Broken(KVCache):
        @property
        def state(self):
            raise RuntimeError("[malloc] unable to allocate")

    broken = Broken()
    broken.update_and_fetch(mx.ones((1, 1, TOKENS, 8)), mx.ones((1, 1, TOKENS, 8)))
    prefixes = kept(4)
    prefixes.keep([broken], prompt(1))
    assert prefixes.nbytes == 0
    assert prefixes.cached_tokens([*prompt(1), 5]) == 0


def test_a_model_whose_caches_mlx_lm_cannot_batch_is_refused():
    check_batchable(SimpleNamespace(make_cache=lambda: [KVCache()]))
    with pytest.raises(LoadError, match="ChunkedKVCache") as failure:
        check_batchable(SimpleNamespace(make_cache=lambda: [KVCache(), ChunkedKVCache(8)]))
    assert failure.value.reason is LoadFailure.UNSUPPORTED
