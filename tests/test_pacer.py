"""Chunks follow the measured speed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxd.engines.pacer import ALONE_FACTOR, FIRST_CHUNK, GROWTH, LEAST_CHUNK, PrefillPacer


class Machine:
    """A step costs `fixed` seconds, and each token `token`, and `attention` for every token before it."""

    def __init__(self, fixed: float, token: float, attention: float = 0.0) -> None:
        self.fixed, self.token, self.attention = fixed, token, attention

    def seconds(self, rows: int, chunk: int, depth: int) -> float:
        return self.fixed + rows * chunk * (self.token + self.attention * (depth + chunk / 2))

    def prefill(self, pacer: PrefillPacer, prompt: int, rows: int = 1) -> list[tuple[int, float]]:
        """The chunks of a prompt while others decode, each with its seconds."""
        steps, depth = [], 0
        while depth < prompt:
            pacer.observe_decode(self.fixed)
            chunk = min(pacer.chunk(rows, decoding=True, depth=depth), prompt - depth)
            seconds = self.seconds(rows, chunk, depth)
            pacer.observe(rows * chunk, seconds, rows=rows, depth=depth)
            steps.append((chunk, seconds))
            depth += chunk
        return steps


def test_without_a_bound_every_chunk_is_the_limit():
    pacer = PrefillPacer(2048, None)
    pacer.observe(10, 10.0)
    assert pacer.chunk(4, decoding=True) == 2048


def test_the_first_chunk_is_small_because_no_speed_is_known():
    assert PrefillPacer(2048, 0.25).chunk(1, decoding=False) == FIRST_CHUNK
    assert PrefillPacer(32, 0.25).chunk(1, decoding=False) == 32


@pytest.mark.parametrize(
    ("rows", "decoding", "chunk"), [(1, True, 256), (2, True, 128), (4, True, 64), (1, False, 1024)]
)
def test_a_chunk_fills_the_bound(rows, decoding, chunk):
    pacer = PrefillPacer(2048, 0.25)
    for depth in (0, 1000):
        pacer.observe(1000, 0.9, depth=depth)
    assert pacer.chunk(rows, decoding=decoding, depth=2000) == chunk


def test_a_fast_machine_comes_to_the_limit_and_a_slow_one_gets_the_least():
    fast, slow = PrefillPacer(2048, 0.25), PrefillPacer(2048, 0.25)
    sizes = [chunk for chunk, _ in Machine(0.001, 1e-6).prefill(fast, 10_000)]
    assert sizes[:6] == [64, 128, 256, 512, 1024, 2048]
    slow.observe(1, 1.0)
    assert slow.chunk(1, decoding=True) == LEAST_CHUNK


def test_a_small_chunk_does_not_look_slow_for_what_every_step_costs():
    steps = Machine(0.1, 0.002).prefill(PrefillPacer(2048, 0.25), 1000)
    assert [chunk for chunk, _ in steps[-6:-1]] == [64] * 5


def test_chunks_shrink_as_a_prompt_gets_deep_before_any_is_too_slow():
    steps = Machine(0.01, 0.0001, attention=2e-6).prefill(PrefillPacer(4096, 0.25), 4000)
    sizes = [chunk for chunk, _ in steps]
    assert sizes[-2] < max(sizes)
    assert max(seconds for _, seconds in steps) <= 0.25 * 1.05


def test_the_next_prompt_begins_with_larger_chunks_than_the_last_one_ended_with():
    machine, pacer = Machine(0.01, 0.0001, attention=2e-6), PrefillPacer(4096, 0.25)
    first, second = machine.prefill(pacer, 4000), machine.prefill(pacer, 4000)
    assert second[0][0] > first[-2][0]
    assert max(seconds for _, seconds in second) <= 0.25 * 1.05


@given(st.floats(0, 0.1), st.floats(1e-5, 0.01), st.floats(0, 1e-5), st.integers(1, 8), st.integers(100, 6000))
def test_on_a_steady_machine_no_chunk_is_much_over_the_bound(fixed, token, attention, rows, prompt):
    machine, pacer = Machine(fixed, token, attention), PrefillPacer(8192, 0.25)
    for chunk, seconds in machine.prefill(pacer, prompt, rows)[1:]:
        assert chunk <= LEAST_CHUNK or seconds <= 2 * 0.25


@given(
    st.lists(st.tuples(st.integers(0, 10_000), st.floats(0, 100), st.integers(1, 9), st.integers(0, 9999))),
    st.integers(1, 40),
    st.integers(1, 8192),
    st.floats(0.001, 10),
    st.integers(0, 100_000),
)
def test_a_chunk_is_always_between_one_and_the_limit_and_never_grows_far(steps, rows, limit, max_stall, depth):
    pacer = PrefillPacer(limit, max_stall)
    largest = 0
    for tokens, seconds, count, at in steps:
        pacer.observe(tokens, seconds, rows=count, depth=at)
        largest = max(largest, tokens)
    for decoding in (True, False):
        chunk = pacer.chunk(rows, decoding=decoding, depth=depth)
        assert 1 <= chunk <= limit
        assert chunk <= max(FIRST_CHUNK, GROWTH * largest)


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
