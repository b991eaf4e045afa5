"""A model whose ranks read the same tokens: those that rank 0 has sampled."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from mlxd.engines.loader import WrappedModel


class AgreedModel(WrappedModel):
    """Before each step of decoding the tokens of rank 0 go to all ranks, within the step's own graph.

    So the ranks need neither the requests' samplers, seeds and guides nor logits that are the same to the last bit.
    Prompts are known to all. `tokens` are `[rows, length]`.
    """

    def __init__(self, model: Any, group: Any) -> None:
        super().__init__(model)
        self._group = group

    def __call__(self, tokens: mx.array, cache: Any) -> mx.array:
        if tokens.shape[1] == 1:
            own = tokens.astype(mx.int32)
            share = own if self._group.rank() == 0 else mx.zeros_like(own)
            tokens = mx.distributed.all_sum(share, group=self._group)
            # a stage of a pipeline that embeds no tokens would never come to it, and the others wait
            mx.async_eval(tokens)  # type: ignore[no-untyped-call]
        logits: mx.array = self._model(tokens, cache=cache)
        return logits
