"""Tiny folders of more vision families."""

from __future__ import annotations

import tiny_vision_templates as templates
from tiny_vision_family import HALF, PAD, PATCH, TEXT, VISION, Family
from tiny_vision_qwen import QWEN_VISION

# One token for each square of 14 pixels, another token after each row of them.
PIXTRAL = Family(
    config={
        "model_type": "pixtral",
        "bos_token_id": "<s>",
        "eos_token_id": "</s>",
        "image_token_index": "[IMG]",
        "vision_feature_layer": -1,
        "text_config": {**TEXT, "model_type": "mistral"},
        "vision_config": {
            **VISION,
            "model_type": "pixtral",
            "head_dim": 16,
            "image_size": 4 * PATCH,
            "rope_theta": 10000.0,
        },
    },
    template=templates.MISTRAL,
    preprocessor={
        "image_processor_type": "PixtralImageProcessor",
        "patch_size": PATCH,
        "size": {"longest_edge": 4 * PATCH},
        **HALF,
    },
    processor={"processor_class": "PixtralProcessor", "patch_size": PATCH},
    tokens=("[IMG]", "[IMG_BREAK]", "[IMG_END]", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
    bos="<s>",
    eos="</s>",
)

# One token for each square of 28 pixels.
GLM4V = Family(
    config={
        "model_type": "glm4v",
        "eos_token_id": PAD,
        "pad_token_id": PAD,
        "image_token_id": "<|image|>",
        "image_token_index": "<|image|>",
        "video_token_id": "<|video|>",
        "video_token_index": "<|video|>",
        "vision_start_token_id": "<|begin_of_image|>",
        "vision_end_token_id": "<|end_of_image|>",
        "text_config": {
            **TEXT,
            "model_type": "glm4v_text",
            "attention_bias": True,
            "partial_rotary_factor": 0.5,
            "rope_scaling": {"rope_type": "default", "mrope_section": [2, 3, 3]},
        },
        "vision_config": {
            **QWEN_VISION,
            "model_type": "glm4v",
            "out_hidden_size": 128,
            "patch_size": PATCH,
            "image_size": 8 * PATCH,
        },
    },
    template=templates.GLM,
    preprocessor={
        "image_processor_type": "Glm4vImageProcessor",
        "patch_size": PATCH,
        "merge_size": 2,
        "temporal_patch_size": 2,
        "size": {"shortest_edge": 4 * (2 * PATCH) ** 2 * 2, "longest_edge": 16 * (2 * PATCH) ** 2 * 2},
        **HALF,
    },
    tokens=(
        "<|image|>",
        "<|video|>",
        "<|begin_of_image|>",
        "<|begin_of_box|>",
        "<|end_of_box|>",
        "<|end_of_image|>",
        "<|user|>",
        "<|assistant|>",
        "<|system|>",
    ),
    eos=PAD,
)

# Attention in the first layer, a convolution with a state in the second.
LFM2_VL = Family(
    config={
        "model_type": "lfm2_vl",
        "eos_token_id": "<|im_end|>",
        "image_token_id": "<image>",
        "downsample_factor": 2,
        "projector_hidden_size": 128,
        "text_config": {
            **TEXT,
            "model_type": "lfm2",
            "conv_L_cache": 3,
            "block_dim": 128,
            "block_ff_dim": 256,
            "block_multiple_of": 32,
            "block_auto_adjust_ff_dim": False,
            "conv_dim": 128,
            "conv_dim_out": 128,
            "norm_eps": 1e-6,
            "layer_types": ["full_attention", "conv"],
        },
        "vision_config": {
            **VISION,
            "model_type": "siglip2_vision_model",
            "patch_size": 16,
            "num_patches": 16,
        },
    },
    template=templates.chatml("<image>"),
    preprocessor={
        "image_processor_type": "Siglip2ImageProcessor",
        "patch_size": 16,
        "encoder_patch_size": 16,
        "downsample_factor": 2,
        "max_image_tokens": 16,
        "min_image_tokens": 4,
        "max_num_patches": 64,
        "tile_size": 64,
        **HALF,
    },
    processor={"processor_class": "Lfm2VlProcessor"},
    tokens=(
        "<|image_start|>",
        "<|image_end|>",
        "<|img_thumbnail|>",
        *(f"<|img_row_{row}_col_{column}|>" for row in range(1, 11) for column in range(1, 11)),
    ),
    named={
        "image": "<image>",
        "image_start": "<|image_start|>",
        "image_end": "<|image_end|>",
        "image_thumbnail": "<|img_thumbnail|>",
    },
)

# One token for each square of 28 pixels; experts in the second layer.
KIMI_VL = Family(
    config={
        "model_type": "kimi_vl",
        "eos_token_id": "<|im_end|>",
        "media_placeholder_token_id": "<|media_pad|>",
        "text_config": {
            **TEXT,
            "model_type": "deepseek_v3",
            "num_key_value_heads": 4,
            "moe_intermediate_size": 64,
            "n_shared_experts": 1,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_group": 1,
            "topk_group": 1,
            "kv_lora_rank": 32,
            "q_lora_rank": None,
            "qk_rope_head_dim": 16,
            "v_head_dim": 32,
            "qk_nope_head_dim": 16,
            "first_k_dense_replace": 1,
        },
        "vision_config": {
            "model_type": "moonvit",
            "depth": 2,
            "num_hidden_layers": 2,
            "embed_dim": 64,
            "hidden_size": 64,
            "num_heads": 4,
            "patch_size": PATCH,
            "intermediate_size": 128,
            "init_pos_emb_height": 8,
            "init_pos_emb_width": 8,
        },
    },
    template=templates.chatml("<|media_pad|>"),
    preprocessor={"image_processor_type": "KimiVLImageProcessor", "patch_size": PATCH},
    tokens=("<|media_pad|>", "<|im_assistant|>"),
)

# 4 tokens for each of up to four tiles of 56 pixels, and for the whole image if there is more than one tile.
AYA_VISION = Family(
    config={
        "model_type": "aya_vision",
        "eos_token_id": "<|END_OF_TURN_TOKEN|>",
        "image_token_index": "<|IMG_PATCH|>",
        "downsample_factor": 2,
        "alignment_intermediate_size": 128,
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full",
        "text_config": {
            **TEXT,
            "model_type": "cohere2",
            "sliding_window": 512,
            "sliding_window_pattern": 2,
        },
        "vision_config": {**VISION, "model_type": "siglip_vision_model"},
    },
    template=templates.chatml("<image>"),
    preprocessor={
        "image_processor_type": "GotOcr2ImageProcessor",
        "size": {"height": 4 * PATCH, "width": 4 * PATCH},
        "crop_to_patches": True,
        "min_patches": 1,
        "max_patches": 4,
        **HALF,
    },
    processor={
        "processor_class": "AyaVisionProcessor",
        "patch_size": PATCH,
        "img_size": 4 * PATCH,
        "downsample_factor": 2,
        "image_token": "<image>",
    },
    tokens=("<image>", "<|START_OF_IMG|>", "<|END_OF_IMG|>", "<|IMG_PATCH|>", "<|IMG_LINE_BREAK|>", "TILE_GLOBAL"),
    eos="<|END_OF_TURN_TOKEN|>",
)
