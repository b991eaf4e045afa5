"""Log-probabilities are read exactly, whatever the type of the row, and ties have an order."""

import mlx.core as mx
import numpy as np
import pytest

from mlxd.engines.logprobs import batch_logprobs, token_logprobs
from mlxd.engines.types import TokenLogprobs


def normalised(rows: np.ndarray, dtype=mx.float32) -> list[mx.array]:
    logits = mx.array(rows.astype(np.float32)).astype(dtype)
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    mx.eval(logprobs)
    return list(logprobs)


def by_numpy(row: mx.array, token: int, count: int) -> TokenLogprobs:
    values = np.array(row.astype(mx.float32))
    order = np.lexsort((np.arange(len(values)), -values))[:count]
    top = tuple((int(i), float(values[i])) for i in order if values[i] > -np.inf)
    return TokenLogprobs(token, float(values[token]), top)


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
@pytest.mark.parametrize("decimals", [6, 0])
def test_values_and_order_are_numpys(dtype, decimals):
    random = np.random.default_rng(decimals)
    rows = normalised(np.round(random.normal(size=(6, 3000)) * 3, decimals), dtype)
    tokens, counts = [0, 2999, 7, 8, 9, 10], [0, 1, 5, 20, 3, 3000]
    expected = [by_numpy(*each) for each in zip(rows, tokens, counts, strict=True)]
    assert batch_logprobs(rows, tokens, counts) == expected
    assert token_logprobs(rows[3], 8, 20) == expected[3]


def test_equally_likely_tokens_come_in_the_order_of_their_ids():
    (row,) = normalised(np.zeros((1, 50)))
    assert [token for token, _ in token_logprobs(row, 30, 4).top] == [0, 1, 2, 3]


def test_tokens_without_probability_are_not_among_the_likeliest():
    logits = np.full((1, 40), -np.inf)
    logits[0, [7, 3]] = 0.0
    (row,) = normalised(logits)
    answer = token_logprobs(row, 7, 5)
    assert [token for token, _ in answer.top] == [3, 7]
    assert answer.logprob == pytest.approx(np.log(0.5))


def test_a_certain_token_has_logprob_zero():
    logits = np.full((1, 40), -np.inf)
    logits[0, 7] = 3.0
    (row,) = normalised(logits)
    assert token_logprobs(row, 7, 5) == TokenLogprobs(7, 0.0, ((7, 0.0),))


def test_more_tokens_than_there_are_can_be_asked_for():
    (row,) = normalised(np.arange(5.0)[None])
    assert [token for token, _ in token_logprobs(row, 0, 20).top] == [4, 3, 2, 1, 0]


def test_no_rows_are_no_logprobs():
    assert batch_logprobs([], [], []) == []
