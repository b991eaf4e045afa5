"""Which layers of a model keep keys and values, read from the many ways configurations say so."""

from __future__ import annotations

import enum
from collections.abc import Sequence

from mlxd.memory.model_config import Config, model_type, number, numbers, words

MAX_LAYERS = 10_000


class LayerKind(enum.Enum):
    """What a layer keeps per token: all of them, the last window of them, or a state of fixed size."""

    FULL = "full"
    SLIDING = "sliding"
    STATE = "state"


# mlx-lm gives only these a rotating cache. Others keep every token whatever their configuration calls a
# layer, so a model that is not named here is priced in full: an upper bound.
_ROTATING = frozenset(
    {
        "afmoe",
        "cohere2",
        "exaone_moe",
        "gemma3",
        "gemma3_text",
        "gemma3n",
        "gemma3n_text",
        "gemma4",
        "gemma4_text",
        "gpt_oss",
        "laguna",
        "llama",
        "mellum",
        "ministral3",
        "olmo3",
        "spark2_5",
        "step3p5",
    }
)
# every n-th layer is full when the configuration leaves its pattern out
_PATTERNS = {"gemma3": 6, "gemma3_text": 6, "gemma4": 5, "gemma4_text": 5, "cohere2": 4}
_WINDOWS = {"gemma3": 512, "gemma3_text": 512, "gemma4": 512, "gemma4_text": 512}
_INTERVALS = {"qwen3_next": 4, "qwen3_5": 4, "qwen3_5_text": 4, "qwen3_5_moe": 4, "qwen3_5_moe_text": 4}
_STATE_MODELS = frozenset({"mamba", "mamba2", "rwkv7", "falcon_mamba"})

_STATE_WORDS = ("linear", "mamba", "conv", "recurrent", "ssm", "delta", "rwkv")
_NO_TOKENS = frozenset({"moe", "mlp", "ffn"})


def layer_kinds(config: Config) -> list[LayerKind]:
    """The kind of each layer that has a cache of its own; empty when the number of layers is unknown.

    1. A list of layer types. 2. A pattern string, `*` for attention. 3. Linear layers listed or counted.
    4. Sliding windows by pattern. 5. Otherwise every layer keeps all tokens.
    Layers that share an earlier one's cache are left out.
    """
    count = min(number(config, "num_hidden_layers", "n_layer", "n_layers", "num_layers") or 0, MAX_LAYERS)
    kinds = _named(config) or _charted(config) or _linear(config, count) or _patterned(config, count)
    kinds = kinds or [LayerKind.FULL] * count
    if sliding_window(config) is None:
        kinds = [LayerKind.FULL if kind is LayerKind.SLIDING else kind for kind in kinds]
    return kinds[: len(kinds) - _shared(config, len(kinds))]


def sliding_window(config: Config) -> int | None:
    """Tokens that sliding layers keep, None when mlx-lm keeps all of them for this model."""
    if model_type(config) not in _ROTATING:
        return None
    return number(config, "sliding_window") or _WINDOWS.get(model_type(config))


def _named(config: Config) -> list[LayerKind]:
    if model_type(config) in _PATTERNS and number(config, "sliding_window_pattern"):
        return []
    names = words(config, "layer_types") or words(config, "layers_block_type")
    return [_kind(name) for name in names[:MAX_LAYERS]]


def _kind(name: str) -> LayerKind:
    if name in _NO_TOKENS or any(word in name for word in _STATE_WORDS):
        return LayerKind.STATE
    return LayerKind.SLIDING if name.startswith("sliding") else LayerKind.FULL


def _charted(config: Config) -> list[LayerKind]:
    chart = config.get("hybrid_override_pattern")
    marks: Sequence[str] = chart if isinstance(chart, str) else words(config, "hybrid_override_pattern")
    return [LayerKind.FULL if mark == "*" else LayerKind.STATE for mark in marks[:MAX_LAYERS]]


def _linear(config: Config, count: int) -> list[LayerKind]:
    """Hybrids that name their full layers by position; empty for other models."""
    model = model_type(config)
    if model in _STATE_MODELS:
        return [LayerKind.STATE] * count
    nested = config.get("linear_attn_config")
    linear = numbers(nested, "kda_layers") if isinstance(nested, dict) else []
    interval = number(config, "full_attention_interval") or _INTERVALS.get(model)
    period, offset = number(config, "attn_layer_period"), config.get("attn_layer_offset")
    if linear:
        full = set(range(count)) - {position - 1 for position in linear}
    elif interval:
        full = set(range(interval - 1, count, interval))
    elif positions := numbers(config, "full_attn_idxs"):
        full = set(positions)
    elif period and isinstance(offset, int) and 0 <= offset < period:
        full = set(range(offset, count, period))
    else:
        return []
    return [LayerKind.FULL if layer in full else LayerKind.STATE for layer in range(count)]


def _patterned(config: Config, count: int) -> list[LayerKind]:
    model = model_type(config)
    pattern = number(config, "sliding_window_pattern") or _PATTERNS.get(model)
    if model not in _PATTERNS or not pattern:
        return []
    return [LayerKind.SLIDING if (layer + 1) % pattern else LayerKind.FULL for layer in range(count)]


def _shared(config: Config, count: int) -> int:
    """Last layers without a cache of their own."""
    shared = number(config, "num_kv_shared_layers") or 0
    return shared if shared < count else 0
