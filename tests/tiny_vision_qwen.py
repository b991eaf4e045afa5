"""Tiny folders of Qwen's vision families."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import tiny_vision_templates as templates
from tiny_vision_family import HALF, PAD, PATCH, TEXT, Config, Family

# Qwen: as many tokens as the image has squares of 28 pixels (32 for Qwen3), at most 16.
QWEN_TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
QWEN_TEMPLATE = templates.chatml("<|vision_start|><|image_pad|><|vision_end|>")
QWEN_IDS: Config = {
    "bos_token_id": PAD,
    "eos_token_id": "<|im_end|>",
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
}
QWEN_VISION: Config = {
    "depth": 2,
    "num_heads": 4,
    "hidden_size": 64,
    "intermediate_size": 128,
    "out_hidden_size": 128,
    "in_channels": 3,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}


def _qwen_pixels(patch: int) -> Config:
    square = (2 * patch) ** 2
    return {
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": patch,
        "merge_size": 2,
        "temporal_patch_size": 2,
        "min_pixels": 4 * square,
        "max_pixels": 16 * square,
        **HALF,
    }


def _qwen(kind: str, patch: int, config: Config) -> Family:
    return Family(
        config={"model_type": kind, **QWEN_IDS, **config},
        template=QWEN_TEMPLATE,
        preprocessor=_qwen_pixels(patch),
        tokens=QWEN_TOKENS,
    )


QWEN2_VL = _qwen(
    "qwen2_vl",
    PATCH,
    {
        **TEXT,
        "tie_word_embeddings": True,
        "rope_scaling": {"type": "mrope", "mrope_section": [4, 6, 6]},
        "vision_config": {
            **QWEN_VISION,
            "model_type": "qwen2_vl",
            "embed_dim": 64,
            "hidden_size": 128,
            "mlp_ratio": 2,
            "patch_size": PATCH,
        },
    },
)
# One layer of the encoder sees windows of 56 pixels, the other one the whole image.
QWEN2_5_VL = _qwen(
    "qwen2_5_vl",
    PATCH,
    {
        **TEXT,
        "tie_word_embeddings": True,
        "rope_scaling": {"type": "mrope", "mrope_section": [4, 6, 6]},
        "vision_config": {
            **QWEN_VISION,
            "model_type": "qwen2_5_vl",
            "patch_size": PATCH,
            "window_size": 4 * PATCH,
            "fullatt_block_indexes": [1],
        },
    },
)
# The encoder's first layer is added to the first layer of the text model, too.
QWEN3_VL = _qwen(
    "qwen3_vl",
    16,
    {
        "tie_word_embeddings": True,
        "text_config": {
            **TEXT,
            "model_type": "qwen3_vl_text",
            "tie_word_embeddings": True,
            "rope_scaling": {"rope_type": "default", "mrope_section": [6, 5, 5], "mrope_interleaved": True},
        },
        "vision_config": {
            **QWEN_VISION,
            "model_type": "qwen3_vl",
            "patch_size": 16,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0],
        },
    },
)
# Linear attention in the first layer, which keeps a state, and full attention in the second.
QWEN3_5 = _qwen(
    "qwen3_5",
    16,
    {
        "tie_word_embeddings": True,
        "text_config": {
            **TEXT,
            "model_type": "qwen3_5_text",
            "tie_word_embeddings": True,
            "full_attention_interval": 2,
            "linear_num_value_heads": 4,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 32,
            "linear_value_head_dim": 32,
            "linear_conv_kernel_dim": 4,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.5,
                "mrope_section": [3, 3, 2],
            },
        },
        "vision_config": {
            **QWEN_VISION,
            "model_type": "qwen3_5",
            "patch_size": 16,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [],
        },
    },
)


def _with_experts(dense: Family, **text: Any) -> Family:
    """A family with four experts, of which two see each token."""
    kind = f"{dense.config['model_type']}_moe"
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, **text}
    config = {
        **dense.config,
        "model_type": kind,
        "text_config": {**dense.config["text_config"], "model_type": f"{kind}_text", **experts},
        "vision_config": {**dense.config["vision_config"], "model_type": kind},
    }
    return replace(dense, config=config)


QWEN3_VL_MOE = _with_experts(QWEN3_VL, decoder_sparse_step=1, mlp_only_layers=[])
QWEN3_5_MOE = _with_experts(QWEN3_5, shared_expert_intermediate_size=64)
