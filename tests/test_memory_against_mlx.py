"""Estimates against the real thing: the bytes MLX holds for weights and caches."""

from __future__ import annotations

import importlib
import json

import mlx.core as mx
import pytest
from mlx import nn
from mlx.utils import tree_flatten
from mlx_lm import load
from mlx_lm.models.cache import KVCache, RotatingKVCache, make_prompt_cache
from tiny_models import build_tiny_model

from mlxd.memory.estimates import inspect_folder, kv_bytes

BASE = {
    "hidden_size": 64,
    "num_hidden_layers": 6,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "vocab_size": 128,
    "rope_theta": 10000.0,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}
LATENT = {
    "kv_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "moe_intermediate_size": 32,
    "num_key_value_heads": 4,
    "n_routed_experts": None,
    "n_shared_experts": None,
    "rope_scaling": None,
    "tie_word_embeddings": False,
}
INDEXER = {"q_lora_rank": 16, "index_head_dim": 16, "index_n_heads": 2, "index_topk": 2048}
SLIDING = {"sliding_window": 128, "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2}
PER_LAYER = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 128}
CONFIGS = {
    "llama": {"num_key_value_heads": None},
    "qwen2": {"use_sliding_window": False, **SLIDING},
    "qwen3": {"head_dim": 32},
    "llama with windows": SLIDING,
    "olmo3": {"head_dim": 16, **SLIDING},
    "gemma3_text": {"head_dim": 16, "sliding_window": 128},
    "gemma3": {"text_config": {**BASE, "model_type": "gemma3_text", "head_dim": 256, "sliding_window": 128}},
    "gemma4_text": {
        "num_hidden_layers": 10,
        "head_dim": 16,
        "global_head_dim": 32,
        "num_kv_shared_layers": 4,
        "sliding_window": 128,
        **PER_LAYER,
    },
    "deepseek_v3": {**LATENT, "q_lora_rank": None},
    "deepseek_v32": {**LATENT, **INDEXER},
    "lfm2": {
        "norm_eps": 1e-6,
        "conv_bias": False,
        "conv_L_cache": 3,
        "block_dim": 64,
        "block_ff_dim": 64,
        "block_multiple_of": 32,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": True,
        "full_attn_idxs": [2, 4],
    },
}


def nbytes(model):
    return sum(array.nbytes for _, array in tree_flatten(model.parameters()))


def tokens(count, start=0):
    return mx.arange(start, start + count)[None] % 100


def attention_caches(model):
    """The prompt cache, and those of its entries that keep keys and values."""
    cache = make_prompt_cache(model)
    flat = [part for entry in cache for part in getattr(entry, "caches", [entry])]
    return cache, [part for part in flat if isinstance(part, (KVCache, RotatingKVCache))]


def held_after(model, count):
    cache, caches = attention_caches(model)
    mx.eval(model(tokens(count), cache=cache))
    mx.eval(model(tokens(1), cache=cache))
    return sum(part.nbytes for part in caches)


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_a_loaded_model_holds_what_was_estimated(tmp_path, kind):
    folder = build_tiny_model(tmp_path / "model", "micro", kind, num_hidden_layers=3, num_attention_heads=4)
    estimate = inspect_folder(folder)
    model, _ = load(str(folder), lazy=True)
    assert estimate.problem is None
    assert estimate.weight_bytes == nbytes(model)
    assert held_after(model, 255) == 256 * estimate.kv_bytes_per_token
    assert held_after(model, 256) == kv_bytes(1, 257, estimate.kv_bytes_per_token)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_a_quantized_model_holds_what_was_estimated(tmp_path, dtype):
    folder = build_tiny_model(tmp_path / "model", "micro")
    model, _ = load(str(folder))
    model.set_dtype(dtype)
    nn.quantize(model, group_size=32, bits=4)
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())))
    config = json.loads((folder / "config.json").read_text())
    config["quantization"] = {"group_size": 32, "bits": 4}
    (folder / "config.json").write_text(json.dumps(config))

    estimate = inspect_folder(folder)
    loaded, _ = load(str(folder), lazy=True)
    assert estimate.weight_bytes == nbytes(loaded)
    assert estimate.itemsize == dtype.size
    assert held_after(loaded, 255) == 256 * estimate.kv_bytes_per_token


@pytest.mark.parametrize("name", CONFIGS)
def test_a_cache_grows_as_estimated_in_every_family(tmp_path, name):
    config = {**BASE, "model_type": name.split()[0], **CONFIGS[name]}
    family = importlib.import_module(f"mlx_lm.models.{config['model_type']}")
    model = family.Model(family.ModelArgs.from_dict(config))
    mx.save_safetensors(str(tmp_path / "model.safetensors"), dict(tree_flatten(model.parameters())))
    (tmp_path / "config.json").write_text(json.dumps(config))

    estimate = inspect_folder(tmp_path)
    assert (estimate.problem, estimate.note) == (None, None)
    cache, caches = attention_caches(model)
    mx.eval(model(tokens(256), cache=cache))
    assert sum(part.nbytes for part in caches) == 256 * estimate.kv_bytes_per_token
    mx.eval(model(tokens(1), cache=cache))
    expected = kv_bytes(1, 257, estimate.kv_bytes_per_token, sliding=estimate.sliding)
    assert sum(part.nbytes for part in caches) == expected
