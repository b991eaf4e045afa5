"""What tells one vision family's folders from another's, and the sizes that the tiny ones share.

In a configuration the name of a token stands for its id wherever a key ends in `_token_id` or `_token_index`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Config = dict[str, Any]
PAD = "<|endoftext|>"
PATCH = 14


@dataclass(frozen=True)
class Family:
    """`named` are tokens that the tokenizer has an attribute for, by its name without `_token`.

    Gemma's models scale embeddings up, which makes wide ones outweigh all that the layers add.
    """

    config: Config
    template: str
    preprocessor: Config
    processor: Config = field(default_factory=dict)
    tokens: tuple[str, ...] = ()
    bos: str = PAD
    eos: str = "<|im_end|>"
    named: dict[str, str] = field(default_factory=dict)
    embedding_width: float = 4.0


HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
TEXT: Config = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 8192,
}
# The image is 4 x 4 patches.
VISION: Config = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_channels": 3,
    "image_size": 4 * PATCH,
    "patch_size": PATCH,
}


def square(side: int) -> Config:
    """An image size in pixels."""
    return {"height": side, "width": side}
