"""All vision families that there are tiny folders of."""

from __future__ import annotations

import tiny_vision_templates as templates
from tiny_vision_family import HALF, PAD, PATCH, TEXT, VISION, Family, square
from tiny_vision_gemma import GEMMA3, GEMMA4, PALIGEMMA
from tiny_vision_others import AYA_VISION, GLM4V, KIMI_VL, LFM2_VL, PIXTRAL
from tiny_vision_qwen import QWEN2_5_VL, QWEN2_VL, QWEN3_5, QWEN3_5_MOE, QWEN3_VL, QWEN3_VL_MOE


def _idefics(kind: str, name: str, splitting: bool) -> Family:
    size = 8 * PATCH if splitting else 4 * PATCH
    return Family(
        config={
            "model_type": kind,
            "pad_token_id": PAD,
            "eos_token_id": "<end_of_utterance>",
            "image_token_id": "<image>",
            "scale_factor": 2,
            "text_config": {**TEXT, "model_type": "llama"},
            "vision_config": {**VISION, "model_type": f"{kind}_vision"},
        },
        template=templates.IDEFICS,
        preprocessor={
            "image_processor_type": f"{name}ImageProcessor",
            "do_image_splitting": splitting,
            "size": {"longest_edge": size},
            "max_image_size": {"longest_edge": 4 * PATCH},
            **HALF,
        },
        processor={"processor_class": f"{name}Processor", "image_seq_len": 4},
        tokens=(
            "<fake_token_around_image>",
            "<image>",
            "<global-img>",
            *(f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)),
        ),
        eos="<end_of_utterance>",
    )


# Up to four tiles and the whole image, 4 tokens each with other tokens between them.
IDEFICS3 = _idefics("idefics3", "Idefics3", splitting=True)
SMOLVLM = _idefics("smolvlm", "SmolVLM", splitting=False)

# Every image is 16 tokens.
LLAVA = Family(
    config={
        "model_type": "llava",
        "pad_token_id": PAD,
        "eos_token_id": "</s>",
        "image_token_index": "<image>",
        "vision_feature_layer": -2,
        "vision_feature_select_strategy": "default",
        "text_config": {**TEXT, "model_type": "llama"},
        "vision_config": {**VISION, "model_type": "clip_vision_model"},
    },
    template=templates.LLAVA,
    preprocessor={
        "image_processor_type": "CLIPImageProcessor",
        "size": {"shortest_edge": 4 * PATCH},
        "crop_size": square(4 * PATCH),
    },
    processor={
        "processor_class": "LlavaProcessor",
        "image_token": "<image>",
        "patch_size": PATCH,
        "vision_feature_select_strategy": "default",
        "num_additional_image_tokens": 1,
    },
    tokens=("<image>",),
    bos="<s>",
    eos="</s>",
)

# One token for each square of 28 pixels, another token after each row of them.
MISTRAL3 = Family(
    config={
        "model_type": "mistral3",
        "bos_token_id": "<s>",
        "eos_token_id": "</s>",
        "image_token_index": "[IMG]",
        "spatial_merge_size": 2,
        "vision_feature_layer": -1,
        "text_config": {**TEXT, "model_type": "mistral"},
        "vision_config": {
            **VISION,
            "model_type": "pixtral",
            "head_dim": 16,
            "image_size": 8 * PATCH,
            "rope_theta": 10000.0,
        },
    },
    template=templates.MISTRAL,
    preprocessor={
        "image_processor_type": "PixtralImageProcessor",
        "patch_size": PATCH,
        "size": {"longest_edge": 8 * PATCH},
        **HALF,
    },
    processor={"processor_class": "PixtralProcessor", "patch_size": PATCH, "spatial_merge_size": 2},
    tokens=("[IMG]", "[IMG_BREAK]", "[IMG_END]", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
    bos="<s>",
    eos="</s>",
)

# 4 tokens for each of up to four tiles of 56 pixels, and for the whole image if there is more than one tile.
INTERNVL_CHAT = Family(
    config={
        "model_type": "internvl_chat",
        "eos_token_id": "<|im_end|>",
        "image_token_index": "<IMG_CONTEXT>",
        "downsample_ratio": 0.5,
        "force_image_size": 4 * PATCH,
        "max_dynamic_patch": 4,
        "llm_config": {**TEXT, "model_type": "qwen2", "tie_word_embeddings": True},
        "vision_config": {**VISION, "model_type": "intern_vit_6b", "drop_path_rate": 0.0},
    },
    template=templates.chatml("<image>\n"),
    preprocessor={"image_processor_type": "CLIPImageProcessor", "size": 4 * PATCH},
    tokens=("<img>", "</img>", "<IMG_CONTEXT>"),
)

# One token for an image; the second layer attends to the encoder's output, which is not in the sequence.
MLLAMA = Family(
    config={
        "model_type": "mllama",
        "bos_token_id": "<|begin_of_text|>",
        "eos_token_id": "<|eot_id|>",
        "image_token_index": "<|image|>",
        "text_config": {**TEXT, "model_type": "mllama_text_model", "cross_attention_layers": [1]},
        "vision_config": {
            **VISION,
            "num_global_layers": 1,
            "max_num_tiles": 4,
            "intermediate_layers_indices": [0],
            "vision_output_dim": 128,
        },
    },
    template=templates.LLAMA,
    preprocessor={
        "image_processor_type": "MllamaImageProcessor",
        "size": square(4 * PATCH),
        "max_image_tiles": 4,
        **HALF,
    },
    processor={"processor_class": "MllamaProcessor"},
    tokens=("<|image|>", "<|start_header_id|>", "<|end_header_id|>", "<|python_tag|>"),
    bos="<|begin_of_text|>",
    eos="<|eot_id|>",
)

FAMILIES: dict[str, Family] = {
    "qwen2_vl": QWEN2_VL,
    "qwen2_5_vl": QWEN2_5_VL,
    "qwen3_vl": QWEN3_VL,
    "gemma3": GEMMA3,
    "idefics3": IDEFICS3,
    "smolvlm": SMOLVLM,
    "llava": LLAVA,
    "mistral3": MISTRAL3,
    "qwen3_5": QWEN3_5,
    "gemma4": GEMMA4,
    "internvl_chat": INTERNVL_CHAT,
    "paligemma": PALIGEMMA,
    "mllama": MLLAMA,
    "qwen3_vl_moe": QWEN3_VL_MOE,
    "qwen3_5_moe": QWEN3_5_MOE,
    "pixtral": PIXTRAL,
    "glm4v": GLM4V,
    "lfm2_vl": LFM2_VL,
    "kimi_vl": KIMI_VL,
    "aya_vision": AYA_VISION,
}
