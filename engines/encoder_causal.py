"""Decoders that make embeddings: mlx-lm's model bodies, without a language head. Attention is to what came before."""

# mlx.nn comes without types.
# mypy: allow-subclassing-any, no-warn-return-any

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models import llama, qwen2, qwen3

# Families whose bodies give the last layer's normed states, and take right padding: nothing looks ahead.
_BODIES: Mapping[str, tuple[Any, Any]] = MappingProxyType(
    {
        "llama": (llama.LlamaModel, llama.ModelArgs),
        "mistral": (llama.LlamaModel, llama.ModelArgs),
        "qwen2": (qwen2.Qwen2Model, qwen2.ModelArgs),
        "qwen3": (qwen3.Qwen3Model, qwen3.ModelArgs),
    }
)
CAUSAL_TYPES = tuple(_BODIES)
_BODY = "model."


class CausalEncoder(nn.Module):
    """Hidden states of all tokens: (rows, width) of ids to (rows, width, hidden). Types and padding change nothing."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.model = body

    def __call__(self, tokens: mx.array, types: mx.array, real: mx.array) -> mx.array:  # noqa: ARG002 - as BertEncoder
        return self.model(tokens)

    def sanitize(self, weights: Mapping[str, mx.array]) -> dict[str, mx.array]:
        """The body's weights; those who trained it alone leave its name out."""
        named = {name if name.startswith((_BODY, "lm_head.")) else _BODY + name: w for name, w in weights.items()}
        unused = ("lm_head.", "score.")
        return {
            name: weight
            for name, weight in named.items()
            if not name.startswith(unused) and not name.endswith("rotary_emb.inv_freq")
        }


def causal_classes(config: Mapping[str, Any]) -> tuple[Any, Any]:
    """What makes the model of its arguments, and what makes those of a config."""
    body, arguments = _BODIES[config["model_type"]]
    return lambda args: CausalEncoder(body(args)), arguments


def longest(config: Mapping[str, Any]) -> int | None:
    """Tokens beyond which these bodies would look further back than the model does; None for no bound."""
    window = config.get("sliding_window")
    return window if isinstance(window, int) and window > 0 and config.get("use_sliding_window", True) else None
