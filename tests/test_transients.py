"""What a prefill step takes beyond its cache: learned from what was measured, and never less than that."""

from dataclasses import FrozenInstanceError
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxd.engines.transients import LEAST_CHUNK, SCORE_FACTOR, Shape, Transients

SHAPE = Shape(heads=4, itemsize=4)
REMEMBERED = 8

steps = st.builds(
    lambda rows, chunk, before, nbytes: (rows, chunk, before + chunk, nbytes),
    st.integers(1, 8),
    st.integers(LEAST_CHUNK, 2048),
    st.integers(0, 4000),
    st.integers(0, 2**34),
)


def learned(observations, shape: Shape = SHAPE) -> Transients:
    table = Transients(shape)
    for observation in observations:
        table = table.observed(*observation)
    return table


@given(st.lists(steps, min_size=1, max_size=REMEMBERED))
def test_no_estimate_is_below_what_the_same_step_was_seen_to_take(observations):
    table = learned(observations)
    for rows, chunk, keys, nbytes in observations:
        assert table.estimate(rows, chunk, keys) >= nbytes


@given(st.lists(steps, max_size=REMEMBERED), steps)
def test_more_rows_never_take_less(observations, step):
    rows, chunk, keys, _ = step
    table = learned(observations)
    assert table.estimate(rows + 1, chunk, keys) >= table.estimate(rows, chunk, keys)


@given(st.lists(steps, max_size=REMEMBERED), steps, st.lists(st.integers(0, 4000), min_size=1, max_size=5))
def test_beyond_what_was_seen_a_deeper_step_never_takes_less(observations, step, further):
    rows, chunk, keys, _ = step
    table = learned(observations)
    deepest = max([keys, *(seen[2] for seen in observations)])
    depths = sorted(deepest + more for more in further)
    estimates = [table.estimate(rows, chunk, depth) for depth in depths]
    assert all(later >= earlier for earlier, later in pairwise(estimates))


@given(st.integers(1, 8), st.integers(1, 2048), st.integers(0, 10_000))
def test_before_anything_was_measured_the_configuration_bounds_it(rows, chunk, before):
    keys = chunk + before
    scores = rows * chunk * max(keys, 1024) * SHAPE.heads * SHAPE.itemsize
    assert Transients(SHAPE).estimate(rows, chunk, keys) == SCORE_FACTOR * scores


def test_without_a_configuration_many_heads_are_assumed():
    assert Transients().estimate(1, 64, 64) == Transients(Shape(heads=32)).estimate(1, 64, 64)
    assert not Transients().sizes


@pytest.mark.parametrize("step", [(1, LEAST_CHUNK - 1, 500, 10**6), (0, 64, 64, 10**6), (1, 64, 64, -1)])
def test_what_says_nothing_teaches_nothing(step):
    table = Transients(SHAPE)
    assert table.observed(*step) is table


def test_the_shortest_chunk_that_says_something_teaches():
    assert Transients(SHAPE).observed(1, LEAST_CHUNK, LEAST_CHUNK, 1000).sizes


def test_a_table_that_somebody_holds_never_changes():
    before = learned([(1, 64, 64, 64_000)])
    estimate = before.estimate(1, 64, 64)
    after = before.observed(1, 64, 64, 640_000).observed(1, 256, 4096, 10**8)
    assert before.estimate(1, 64, 64) == estimate
    assert after.estimate(1, 64, 64) > estimate
    with pytest.raises(FrozenInstanceError):
        before.sizes = {}


def test_the_largest_of_the_last_measurements_counts_and_old_ones_are_forgotten():
    high, low = 640_000, 64_000
    table = learned([(1, 64, 64, high), *[(1, 64, 64, low)] * (REMEMBERED - 1)])
    assert table.estimate(1, 64, 64) >= high
    assert table.observed(1, 64, 64, low).estimate(1, 64, 64) < high


def test_a_deeper_step_costs_what_the_two_ends_of_what_was_seen_say():
    table = learned([(1, 64, 64, 64 * 1000), (1, 64, 1088, 64 * 2000)])
    assert table.estimate(1, 64, 2112) == pytest.approx(64 * 3000 * 1.1, rel=0.01)


def test_one_depth_alone_is_continued_with_the_slope_of_the_configuration():
    table = learned([(1, 64, 64, 64 * 1000)])
    assert table.estimate(1, 64, 1088) == pytest.approx(64 * (1000 + 1024 * SHAPE.slope) * 1.1, rel=0.01)


def test_a_larger_chunk_than_was_seen_costs_more_for_each_token_and_a_smaller_one_a_little():
    table = learned([(1, 128, 128, 128 * 1000)])
    a_token = {chunk: table.estimate(1, chunk, 128) / chunk for chunk in (64, 128, 256)}
    assert a_token[256] == pytest.approx(1.4 * a_token[128], rel=0.01)
    assert a_token[128] < a_token[64] < 1.2 * a_token[128]


def test_what_a_chunk_of_another_size_took_does_not_hide_what_one_of_this_size_took():
    table = learned([(1, 128, 128, 128 * 1000), (1, 256, 256, 256 * 10)])
    assert table.estimate(1, 128, 128) >= 128 * 1000
