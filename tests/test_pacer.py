"""Chunks follow the measured speed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxd.engines.pacer import ALONE_FACTOR, FIRST_CHUNK, LEAST_CHUNK, PrefillPacer


def test_without_a_bound_every_chunk_is_the_limit():
    pacer = PrefillPacer(2048, None)
    pacer.observe(10, 10.0)
    assert pacer.chunk(4, decoding=True) == 2048


def test_the_first_chunk_is_small_because_no_speed_is_known():
    assert PrefillPacer(2048, 0.25).chunk(1, decoding=False) == FIRST_CHUNK
    assert PrefillPacer(32, 0.25).chunk(1, decoding=False) == 32


@pytest.mark.parametrize(
    ("rows", "decoding", "chunk"), [(1, True, 256), (2, True, 128), (3, True, 64), (4, True, 64), (1, False, 1024)]
)
def test_a_chunk_fills_the_bound(rows, decoding, chunk):
    pacer = PrefillPacer(2048, 0.25)
    pacer.observe(1000, 0.9)
    assert pacer.chunk(rows, decoding=decoding) == chunk


def test_a_fast_machine_gets_the_limit_and_a_slow_one_the_least():
    fast, slow = PrefillPacer(2048, 0.25), PrefillPacer(2048, 0.25)
    fast.observe(1000, 0.01)
    slow.observe(1, 1.0)
    assert fast.chunk(1, decoding=True) == 2048
    assert slow.chunk(1, decoding=True) == LEAST_CHUNK


def test_chunks_shrink_as_a_prompt_gets_deep():
    pacer = PrefillPacer(4096, 0.25)
    sizes = []
    for depth in range(1, 8):
        pacer.observe(100, 0.02 * depth)
        sizes.append(pacer.chunk(1, decoding=True))
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < sizes[0]


@given(
    st.lists(st.tuples(st.integers(0, 10_000), st.floats(0, 100))),
    st.integers(1, 40),
    st.integers(1, 8192),
    st.floats(0.001, 10),
)
def test_a_chunk_is_always_between_one_and_the_limit(steps, rows, limit, max_stall):
    pacer = PrefillPacer(limit, max_stall)
    for tokens, seconds in steps:
        pacer.observe(tokens, seconds)
    for decoding in (True, False):
        assert 1 <= pacer.chunk(rows, decoding=decoding) <= limit


@given(st.floats(1e-5, 1), st.integers(1, 16), st.floats(0, 1))
def test_while_others_decode_a_chunk_is_predicted_to_stay_under_the_bound(seconds_per_token, rows, decode):
    pacer = PrefillPacer(8192, 0.25)
    for _ in range(60):
        pacer.observe_decode(decode)
    pacer.observe(100, decode + 100 * seconds_per_token)
    chunk = pacer.chunk(rows, decoding=True)
    fixed = min(decode, 0.125)
    assert chunk == LEAST_CHUNK or fixed + chunk * rows * seconds_per_token <= 0.25 * 1.0001
    alone = pacer.chunk(rows, decoding=False)
    assert alone == LEAST_CHUNK or alone * rows * seconds_per_token <= ALONE_FACTOR * 0.25 * 1.0001


def test_a_small_chunk_does_not_look_slow_for_what_every_step_costs():
    pacer = PrefillPacer(2048, 0.25)
    for _ in range(60):
        pacer.observe_decode(0.1)
    sizes = []
    for _ in range(8):
        sizes.append(pacer.chunk(1, decoding=True))
        pacer.observe(sizes[-1], 0.1 + 0.002 * sizes[-1])
    assert sizes[-1] == sizes[-2] == 64
