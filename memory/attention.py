"""How many numbers a model keeps per token, from its configuration alone."""

from __future__ import annotations

from dataclasses import dataclass

from mlxd.memory.layers import LayerKind, layer_kinds, sliding_window
from mlxd.memory.model_config import Config, model_type, number, numbers

# these models cache the expanded heads, the other latent-attention models the latent vector
_EXPANDED_LATENT = frozenset({"deepseek_v2", "minicpm3", "youtu_llm"})
_INDEXED = frozenset({"deepseek_v32", "glm_moe_dsa"})
_DEFAULTS: dict[str, dict[str, int]] = {
    "gemma3": {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256},
    "gemma3_text": {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256},
    "gemma4_text": {"num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 256, "global_head_dim": 512},
}


@dataclass(frozen=True, slots=True)
class KeyValueShape:
    """Numbers kept per token by all full layers and by all sliding layers; `window` in tokens, 0 for none."""

    full: int
    sliding: int
    window: int
    heads: int


@dataclass(frozen=True, slots=True)
class _Heads:
    """One layer's cache: heads times the length of a key and of a value."""

    count: int
    key: int
    value: int

    @property
    def numbers(self) -> int:
        return self.count * (self.key + self.value)


def key_value_shape(config: Config) -> KeyValueShape | None:
    """What the model keeps per token, None when the configuration does not tell."""
    config = {**_DEFAULTS.get(model_type(config), {}), **config}
    kinds = layer_kinds(config)
    if not kinds:
        return None
    heads = number(config, "num_attention_heads", "n_head", "n_heads") or 0
    full, sliding = kinds.count(LayerKind.FULL), kinds.count(LayerKind.SLIDING)
    if not full and not sliding:
        return KeyValueShape(full=0, sliding=0, window=0, heads=heads)
    shape = _heads(config, heads)
    if shape is None:
        return None
    per_layer = numbers(config, "num_key_value_heads")
    full_numbers = full * _global_heads(config, shape).numbers
    if per_layer:
        full_numbers = sum(per_layer) * (shape.key + shape.value)
    window = sliding_window(config) if sliding else None
    return KeyValueShape(full_numbers, sliding * shape.numbers, window or 0, heads)


def _heads(config: Config, heads: int) -> _Heads | None:
    latent, rope = number(config, "kv_lora_rank"), number(config, "qk_rope_head_dim")
    if latent and rope:
        return _latent_heads(config, heads, latent, rope)
    hidden = number(config, "hidden_size", "n_embd", "d_model", "dim")
    size = number(config, "head_dim") or (hidden // heads if hidden and heads else 0)
    count = number(config, "num_key_value_heads", "num_kv_heads", "n_head_kv") or heads
    if config.get("multi_query") is True:
        count = 1
    if not size or not count:
        return None
    return _Heads(count, size, number(config, "v_head_dim") or size)


def _latent_heads(config: Config, heads: int, latent: int, rope: int) -> _Heads | None:
    model = model_type(config)
    if model not in _EXPANDED_LATENT:
        index = number(config, "index_head_dim") or 0
        return _Heads(1, latent + rope, 2 * index if model in _INDEXED else 0)
    hidden = number(config, "hidden_size")
    plain = number(config, "qk_nope_head_dim")
    value = hidden // heads if model == "minicpm3" and hidden and heads else number(config, "v_head_dim")
    return _Heads(heads, plain + rope, value) if plain and value and heads else None


def _global_heads(config: Config, shape: _Heads) -> _Heads:
    """Full layers of models whose full and sliding layers differ."""
    size = number(config, "global_head_dim")
    if size is None:
        return shape
    shares_values = config.get("attention_k_eq_v") is True
    count = (number(config, "num_global_key_value_heads") if shares_values else None) or shape.count
    return _Heads(count, size, size)
