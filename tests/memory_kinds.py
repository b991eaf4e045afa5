"""Small random models of every kind of cache, for prices that are held against what they really take."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tiny_kinds import kind_model

_DENSE: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 8192,
}


@dataclass(frozen=True, slots=True)
class Kind:
    """An architecture: its name in the table, and what differs from a small llama."""

    name: str
    config: dict[str, Any] = field(default_factory=dict)


KINDS = (
    Kind("dense, grouped queries (llama)"),
    Kind("dense, all heads (llama)", {"num_key_value_heads": 4}),
    Kind(
        "sliding window (gemma3)",
        {
            "model_type": "gemma3_text",
            "num_hidden_layers": 6,
            "query_pre_attn_scalar": 64,
            "sliding_window": 128,
            "sliding_window_pattern": 3,
        },
    ),
    Kind(
        "hybrid, convolutions (lfm2)",
        {
            "model_type": "lfm2",
            "norm_eps": 1e-5,
            "conv_bias": False,
            "conv_L_cache": 3,
            "block_dim": 256,
            "block_multiple_of": 16,
            "block_ffn_dim_multiplier": 1.0,
            "block_auto_adjust_ff_dim": False,
            "block_ff_dim": 512,
            "full_attn_idxs": [1, 3],
        },
    ),
    Kind(
        "hybrid, linear attention (qwen3_next)",
        {
            "model_type": "qwen3_next",
            "full_attention_interval": 2,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "moe_intermediate_size": 128,
            "shared_expert_intermediate_size": 128,
            "norm_topk_prob": True,
            "linear_num_value_heads": 4,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 32,
            "linear_value_head_dim": 32,
            "linear_conv_kernel_dim": 4,
            "partial_rotary_factor": 0.25,
        },
    ),
    Kind(
        "experts (qwen3_moe)",
        {
            "model_type": "qwen3_moe",
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "moe_intermediate_size": 128,
            "norm_topk_prob": True,
        },
    ),
    Kind(
        "latent attention (deepseek_v3)",
        {
            "model_type": "deepseek_v3",
            "kv_lora_rank": 64,
            "q_lora_rank": None,
            "qk_rope_head_dim": 32,
            "qk_nope_head_dim": 64,
            "v_head_dim": 64,
            "moe_intermediate_size": 128,
            "num_key_value_heads": 4,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_shared_experts": 1,
            "n_group": 1,
            "topk_group": 1,
            "rope_scaling": None,
        },
    ),
)


def memory_kind(kind: Kind) -> Path:
    """The folder of its model, built once."""
    config = {**_DENSE, **kind.config}
    return kind_model(hashlib.sha256(json.dumps(config).encode()).hexdigest()[:12], config)
