"""Prompts of one batch, chunk by chunk: the same caches as mlx-lm's own, without a look at MLX's cache of buffers."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm import load
from mlx_lm.generate import PromptProcessingBatch
from mlx_lm.models.cache import make_prompt_cache
from tiny_models import build_tiny_model, cached

from mlxd.engines.prompt_batch import PromptBatch

# Two chunks for each of three prompts, of different lengths in the first.
CHUNKS = [[[1, 2, 3, 4, 5], [6, 7], [8]], [[9, 10], [11, 12], [13, 14]]]
FREED = 8_000_000


@pytest.fixture(scope="module")
def model() -> Any:
    return load(str(cached("tiny", lambda out: build_tiny_model(out, size="tiny"))))[0]


def processed(kind: type[PromptProcessingBatch], model: Any) -> list[np.ndarray[Any, Any]]:
    batch = kind(model, [0, 1, 2], [make_prompt_cache(model) for _ in range(3)], tokens=[[], [], []])
    for chunk in CHUNKS:
        batch.prompt([list(tokens) for tokens in chunk])
    assert batch.tokens == [[1, 2, 3, 4, 5, 9, 10], [6, 7, 11, 12], [8, 13, 14]]
    rows = [batch.extract_cache(row) for row in range(3)]
    return [np.array(array) for layers in rows for layer in layers for array in layer.state]


def test_prompts_of_different_lengths_leave_the_caches_that_mlx_lm_makes(model: Any) -> None:
    own, theirs = processed(PromptBatch, model), processed(PromptProcessingBatch, model)
    assert len(own) == len(theirs) > 0
    for mine, other in zip(own, theirs, strict=True):
        np.testing.assert_array_equal(mine, other)


def test_a_chunk_leaves_free_buffers_to_whoever_needs_them_next(model: Any) -> None:
    batch = PromptBatch(model, [0], [make_prompt_cache(model)], tokens=[[]])
    mx.clear_cache()
    freed = mx.zeros((FREED,), dtype=mx.uint8)
    mx.eval(freed)
    del freed
    before = mx.get_cache_memory()
    batch.prompt([[1, 2, 3]])
    assert before >= FREED
    assert mx.get_cache_memory() > 0


def test_a_chunk_for_another_number_of_rows_is_refused(model: Any) -> None:
    batch = PromptBatch(model, [0], [make_prompt_cache(model)], tokens=[[]])
    with pytest.raises(ValueError, match="longer"):
        batch.prompt([[1], [2]])


def test_nothing_happens_without_tokens(model: Any) -> None:
    batch = PromptBatch(model, [], [], tokens=[])
    batch.prompt([])
    assert batch.prompt_cache == []
