"""What prompts are priced at: buffers as mlx-lm lays them out, whole batches, and the height of their prefill."""

from dataclasses import replace

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.models.cache import BatchKVCache, KVCache

from mlxd.engines.cache_cost import STEP, CacheCost, LayerCost, grown
from mlxd.engines.cache_sizes import cost_of, slots_of, used_of
from mlxd.engines.prompt_price import BatchNeed, PromptPrice, RowNeed
from mlxd.engines.transients import Shape, Transients

TOKEN = 100
PRICE = PromptPrice(CacheCost((LayerCost(TOKEN), LayerCost(TOKEN))), Transients(Shape(4, 4)))

lengths = st.integers(1, 2000)
chunks = st.integers(1, 600)


def taken(cache, tokens: int, chunk: int, rows: int = 1) -> int:
    """Put tokens into a real cache in chunks; the slots of its buffer then."""
    while tokens > 0:
        size = min(chunk, tokens)
        keys = mx.zeros((rows, 1, size, 1))
        cache.update_and_fetch(keys, keys)
        tokens -= size
    return cache.keys.shape[2]


def cached(tokens: int) -> KVCache:
    """A sequence's cache out of the prefix cache: its buffer is no longer than what is in it."""
    cache = KVCache()
    cache.keys = cache.values = mx.zeros((1, 1, tokens, 1))
    cache.offset = tokens
    return cache


@given(lengths, chunks)
@settings(max_examples=50, deadline=None)
def test_a_buffer_is_as_long_as_mlx_makes_it(tokens, chunk):
    slots = grown(0, 0, tokens, chunk)
    assert slots == taken(KVCache(), tokens, chunk) == taken(BatchKVCache([0, 0]), tokens, chunk, rows=2)


@given(st.integers(1, 700), st.lists(st.tuples(lengths, chunks), min_size=1, max_size=3))
@settings(max_examples=50, deadline=None)
def test_a_buffer_that_begins_with_cached_tokens_is_as_long_as_mlx_makes_it(start, parts):
    cache = BatchKVCache.merge([cached(start), cached(max(1, start // 2))])
    slots, used = start, start
    for tokens, chunk in parts:
        slots, used = grown(slots, used, tokens, chunk), used + tokens
        assert slots == taken(cache, tokens, chunk, rows=2)
        assert (slots_of([cache]), used_of([cache])) == (slots, used)


@given(lengths, chunks, st.integers(1, 300), st.integers(0, 700))
@settings(max_examples=50, deadline=None)
def test_a_row_is_priced_for_its_prompt_and_the_next_step_of_growth(todo, chunk, left, start):
    """The last token of a prompt has a step of its own, and so has each one after it."""
    batch = BatchKVCache.merge([cached(start)]) if start else BatchKVCache([0])
    for tokens, size in ((todo - 1, chunk), (1 + min(left, STEP), 1)):
        slots = taken(batch, tokens, size) if tokens else 0
    need = BatchNeed((RowNeed(start + todo, left, start, start),))
    assert need.slots_after(chunk) == slots
    assert PRICE.kv(need, chunk) == 2 * TOKEN * slots


def test_caches_that_keep_every_token_cost_what_they_hold():
    cache = KVCache()
    taken(cache, 300, 300)
    assert cost_of([cache, cache]) == CacheCost((LayerCost(8), LayerCost(8)))
    assert cost_of([cache]).bytes(1, 512) == cache.nbytes


def test_a_window_keeps_no_more_than_its_size_and_what_a_chunk_adds_to_it():
    cost = CacheCost((LayerCost(TOKEN), LayerCost(TOKEN, window=128)))
    assert cost.bytes(2, 1000) == 2 * (1000 + 128) * TOKEN
    assert cost.bytes(2, 1000, chunk=64) == 2 * (1000 + 127 + 64) * TOKEN
    assert cost.bytes(2, 100, chunk=64) == 2 * (100 + 100) * TOKEN


def test_a_state_costs_the_same_however_long_a_row_is():
    cost = CacheCost((LayerCost(0, state_bytes=500),))
    assert cost.bytes(3, 10) == cost.bytes(3, 10_000) == 1500


new_rows = st.builds(RowNeed, st.integers(1, 3000), st.integers(1, 600))
begun_rows = st.builds(
    lambda done, todo, left: RowNeed(done + todo, left, done, done), st.integers(0, 2000), lengths, st.integers(1, 600)
)
decoding_rows = st.builds(
    lambda used, room, left: RowNeed(used, left, used, used + room),
    st.integers(1, 2000),
    st.integers(0, 255),
    st.integers(1, 600),
)


@st.composite
def batches(draw) -> BatchNeed:
    """Rows that decode in one buffer, and prompts that are on their way to them."""
    decoding = draw(st.lists(decoding_rows, max_size=3))
    slots = max((row.slots for row in decoding), default=0)
    rows = [replace(row, slots=slots) for row in decoding]
    return BatchNeed((*rows, *draw(st.lists(begun_rows, min_size=1, max_size=3))), slots, len(decoding))


powers = st.sampled_from([64, 128, 256, 512, 1024])


@given(batches(), st.one_of(new_rows, begun_rows), powers)
def test_one_more_row_never_costs_less(need, row, chunk):
    more = BatchNeed((*need.rows, row), need.slots, need.decoding)
    assert PRICE.batches([more], chunk) >= PRICE.batches([need], chunk)


@given(batches(), st.integers(1, 1000), powers)
def test_the_caches_of_a_longer_row_are_never_smaller_but_for_where_a_buffer_is_cut(need, more, chunk):
    """One that is not full is cut to what is used before it grows, and a row of another length meets it elsewhere."""
    *others, last = need.rows
    longer = BatchNeed((*others, replace(last, prompt=last.prompt + more)), need.slots, need.decoding)
    step = PRICE.cost.bytes(len(need.rows), STEP)
    assert PRICE.kv(longer, chunk) + step >= PRICE.kv(need, chunk)


@given(st.lists(new_rows, min_size=1, max_size=4), st.integers(1, 1000), powers)
def test_a_longer_prompt_never_costs_less_but_for_a_step_of_growth(rows, more, chunk):
    """What its answer begins with is paid for beside the last chunk, but not beside the chunk before that."""
    *others, last = rows
    longer = BatchNeed((*others, replace(last, prompt=last.prompt + more)))
    step = PRICE.cost.bytes(len(rows), STEP)
    assert PRICE.batches([longer], chunk) + step >= PRICE.batches([BatchNeed(tuple(rows))], chunk)


@given(st.lists(new_rows, min_size=1, max_size=4), powers)
def test_chunks_of_twice_the_size_never_cost_less(rows, chunk):
    need = BatchNeed(tuple(rows))
    assert PRICE.batches([need], 2 * chunk) >= PRICE.batches([need], chunk)


@given(batches(), batches(), powers)
def test_batches_compute_one_after_the_other_so_the_dearest_counts_and_what_stays_is_added(one, other, chunk):
    alone = [PRICE.batches([need], chunk) - PRICE.kv(need, chunk) for need in (one, other)]
    kept = PRICE.kv(one, chunk) + PRICE.kv(other, chunk)
    assert PRICE.batches([one, other], chunk) == kept + max(alone)


def test_nothing_costs_nothing():
    assert PRICE.batches([], 64) == PRICE.batches([BatchNeed()], 64) == 0


def test_a_row_that_joins_a_long_batch_costs_as_much_as_the_longest():
    running = RowNeed(5000, 10, 5000, 5120)
    before, after = BatchNeed((running,), 5120, 1), BatchNeed((running, RowNeed(20, 10)), 5120, 1)
    assert PRICE.kv(after, 64) - PRICE.kv(before, 64) == 2 * TOKEN * 5120


def test_rows_that_have_joined_grow_from_the_longest_for_as_long_as_any_of_them_goes_on():
    short, long = RowNeed(100, 200, 100, 256), RowNeed(1000, 10)
    assert BatchNeed((short, long), 256, 1).slots_after(64) == 1280


def test_a_prompt_that_joins_one_under_way_is_processed_behind_it():
    """It is padded to where the other is, so the two together go further than either alone."""
    deep, joining = RowNeed(3010, 10, 3000, 3072), RowNeed(2000, 10)
    need = BatchNeed((deep, joining))
    assert need.slots_after(64) >= 5010
    price = PromptPrice(transients=PRICE.transients)
    assert price.batches([need], 64) == PRICE.transients.estimate(2, 64, 5000 - 2000 % 64)


def test_the_work_that_a_long_prompt_has_left_does_not_hide_that_of_a_shorter_one():
    nearly_done, at_its_start = RowNeed(5000, 10, 4990, 5120), RowNeed(3000, 10)
    price = PromptPrice(transients=PRICE.transients)
    assert price.batches([BatchNeed((nearly_done, at_its_start))], 512) >= price.alone(at_its_start, 512)


def test_logits_are_paid_for_by_rows_that_are_new_in_a_batch():
    price = PromptPrice(vocab_size=1000)
    running = RowNeed(10, 5, 10, 256)
    need = BatchNeed((running, RowNeed(20, 5)), 256, 1)
    assert price.batches([need], 64) - price._passing(need, 64) == 12 * 1000


@pytest.mark.parametrize("chunk", [64, 512])
def test_the_height_is_at_the_last_chunk_or_at_the_whole_one_before_it(chunk):
    price = PromptPrice(transients=PRICE.transients)
    estimate = PRICE.transients.estimate
    assert price.alone(RowNeed(chunk, 1), chunk) == estimate(1, chunk, chunk)
    assert price.alone(RowNeed(2 * chunk + 1, 1), chunk) == estimate(1, chunk, 2 * chunk)
