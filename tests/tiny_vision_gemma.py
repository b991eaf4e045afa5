"""Tiny folders of Gemma's vision families."""

from __future__ import annotations

import tiny_vision_templates as templates
from tiny_vision_family import HALF, PAD, PATCH, TEXT, VISION, Family, square

# Gemma 3: every image is 4 tokens; one layer of two sees a window.
GEMMA3 = Family(
    config={
        "model_type": "gemma3",
        "hidden_size": 128,
        "mm_tokens_per_image": 4,
        "pad_token_id": PAD,
        "bos_token_id": "<bos>",
        "eos_token_id": "<end_of_turn>",
        "boi_token_index": "<start_of_image>",
        "eoi_token_index": "<end_of_image>",
        "image_token_index": "<image_soft_token>",
        "text_config": {
            **TEXT,
            "model_type": "gemma3_text",
            "query_pre_attn_scalar": 32,
            "sliding_window": 512,
            "sliding_window_pattern": 2,
            "mm_tokens_per_image": 4,
        },
        "vision_config": {**VISION, "model_type": "siglip_vision_model"},
    },
    template=templates.gemma("<start_of_turn>", "<end_of_turn>", "<start_of_image>"),
    preprocessor={"image_processor_type": "Gemma3ImageProcessor", "size": square(4 * PATCH), **HALF},
    processor={"processor_class": "Gemma3Processor", "image_seq_length": 4},
    tokens=("<start_of_turn>",),
    bos="<bos>",
    eos="<end_of_turn>",
    named={"image": "<image_soft_token>", "boi": "<start_of_image>", "eoi": "<end_of_image>"},
    embedding_width=1.0,
)

# Gemma 4: an image is scaled to at most 9 tokens of 48 x 48 pixels.
GEMMA4 = Family(
    config={
        "model_type": "gemma4",
        "hidden_size": 128,
        "vision_soft_tokens_per_image": 9,
        "audio_config": None,
        "pad_token_id": PAD,
        "bos_token_id": "<bos>",
        "eos_token_id": "<turn|>",
        "boi_token_id": "<|image>",
        "eoi_token_id": "<image|>",
        "image_token_id": "<|image|>",
        "audio_token_id": "<|audio|>",
        "video_token_id": "<|video|>",
        "text_config": {
            **TEXT,
            "model_type": "gemma4_text",
            "global_head_dim": 32,
            "num_kv_shared_layers": 0,
            "hidden_size_per_layer_input": 16,
            "use_double_wide_mlp": False,
            "sliding_window": 512,
            "layer_types": ["sliding_attention", "full_attention"],
        },
        "vision_config": {
            **VISION,
            "model_type": "gemma4_vision",
            "num_key_value_heads": 4,
            "head_dim": 16,
            "global_head_dim": 16,
            "patch_size": 16,
            "pooling_kernel_size": 3,
            "default_output_length": 9,
            "position_embedding_size": 64,
        },
    },
    template=templates.gemma("<|turn>", "<turn|>", "<|image|>"),
    preprocessor={"patch_size": 16, "max_soft_tokens": 9, "pooling_kernel_size": 3},
    processor={
        "processor_class": "Gemma4Processor",
        "image_processor": {"patch_size": 16, "max_soft_tokens": 9, "pooling_kernel_size": 3},
        "feature_extractor": {"feature_size": 32},
    },
    tokens=("<|turn>", "<|audio|>", "<|video|>"),
    bos="<bos>",
    eos="<turn|>",
    named={"image": "<|image|>", "boi": "<|image>", "eoi": "<image|>"},
    embedding_width=1.0,
)


# The whole prompt is read both ways, so that it cannot be cut into chunks; one image of 16 tokens.
PALIGEMMA = Family(
    config={
        "model_type": "paligemma",
        "hidden_size": 128,
        "projection_dim": 128,
        "pad_token_id": PAD,
        "bos_token_id": "<bos>",
        "eos_token_id": "<eos>",
        "image_token_index": "<image>",
        "text_config": {**TEXT, "model_type": "gemma", "num_image_tokens": 16},
        "vision_config": {**VISION, "model_type": "siglip_vision_model", "projection_dim": 128},
    },
    template=templates.PALIGEMMA,
    preprocessor={
        "image_processor_type": "SiglipImageProcessor",
        "image_seq_length": 16,
        "size": square(4 * PATCH),
        **HALF,
    },
    processor={"processor_class": "PaliGemmaProcessor"},
    tokens=("<image>", *(f"<loc{i:0>4}>" for i in range(1024)), *(f"<seg{i:0>3}>" for i in range(128))),
    bos="<bos>",
    eos="<eos>",
    embedding_width=1.0,
)
