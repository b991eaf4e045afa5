"""Tiny random models of architectures whose cache is no plain key-value cache, made by mlx-lm's own classes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tiny_models import atomic_folder, build_tiny_model, cached

# Convolutions keep a state that cannot be cut back, beside one layer of attention.
HYBRID: dict[str, Any] = {
    "model_type": "lfm2",
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 8192,
    "norm_eps": 1e-5,
    "conv_bias": False,
    "conv_L_cache": 3,
    "block_dim": 64,
    "block_multiple_of": 16,
    "block_ffn_dim_multiplier": 1.0,
    "block_auto_adjust_ff_dim": False,
    "block_ff_dim": 128,
    "full_attn_idxs": [1],
}
# Two layers of three see a window of 64 tokens.
SLIDING: dict[str, Any] = {
    "model_type": "gemma3_text",
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "query_pre_attn_scalar": 32,
    "sliding_window": 64,
    "sliding_window_pattern": 3,
    "max_position_embeddings": 8192,
}

_BUILD = """
import importlib, json, sys
import mlx.core as mx
from mlx.utils import tree_flatten, tree_map
config = json.loads(sys.argv[1])
module = importlib.import_module("mlx_lm.models." + config["model_type"])
mx.random.seed(0)
model = module.Model(module.ModelArgs.from_dict(config))
# wide enough that logits differ: the default initialisation makes every answer one token
model.update(tree_map(lambda p: mx.random.normal(p.shape) * 0.12 if p.ndim > 1 else p, model.parameters()))
mx.eval(model.parameters())
mx.save_safetensors(sys.argv[2], dict(tree_flatten(model.parameters())), {"format": "mlx"})
"""


def kind_model(name: str, config: dict[str, Any]) -> Path:
    """The folder of a random model of that configuration, with the tiny tokenizer."""

    def build(out: Path) -> Path:
        tokenizer = cached("micro", lambda path: build_tiny_model(path, size="micro"))
        whole = {**config, "vocab_size": 512, "tie_word_embeddings": True, "eos_token_id": 2}
        with atomic_folder(out) as folder:
            for file in ("tokenizer.json", "tokenizer_config.json"):
                shutil.copy(tokenizer / file, folder / file)
            (folder / "config.json").write_text(json.dumps(whole))
            weights = str(folder / "model.safetensors")
            subprocess.run([sys.executable, "-c", _BUILD, json.dumps(whole), weights], check=True)
        return out

    return cached(f"kind-{name}", build)
