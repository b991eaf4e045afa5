"""Writes small GGUF files for tests."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

ALIGNMENT = 32
_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}


@dataclass(frozen=True)
class RawTensor:
    """A tensor's ggml type number, shape (rows first) and bytes."""

    type: int
    shape: tuple[int, ...]
    data: bytes


def float_tensor(array: np.ndarray) -> RawTensor:
    return RawTensor({np.dtype("f4"): 0, np.dtype("f2"): 1}[array.dtype], array.shape, array.tobytes())


def write_gguf(path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, RawTensor]) -> Path:
    """Write version 3: bool, int (u32), float (f32), str, and lists of str and int (i32)."""
    head = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    for key, value in metadata.items():
        head += [_string(key), _value(value)]
    body, offset = [], 0
    for name, tensor in tensors.items():
        dimensions = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *reversed(tensor.shape))
        head += [_string(name), dimensions, struct.pack("<IQ", tensor.type, offset)]
        padded = tensor.data + bytes(-len(tensor.data) % ALIGNMENT)
        body.append(padded)
        offset += len(padded)
    header = b"".join(head)
    path.write_bytes(header + bytes(-len(header) % ALIGNMENT) + b"".join(body))
    return path


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value: Any) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + _string(value)
        case [str(), *_]:
            return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_string, value))
        case list():
            return struct.pack("<IIQ", 9, 5, len(value)) + struct.pack(f"<{len(value)}i", *value)
    raise TypeError(type(value))


def model_metadata(folder: Path) -> dict[str, Any]:
    """The metadata that describes a tiny llama model folder."""
    config = json.loads((folder / "config.json").read_text())
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocab = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].get)
    special = {token["content"] for token in tokenizer["added_tokens"]}
    return {
        "general.architecture": "llama",
        "llama.embedding_length": config["hidden_size"],
        "llama.block_count": config["num_hidden_layers"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.attention.head_count": config["num_attention_heads"],
        "llama.attention.head_count_kv": config["num_key_value_heads"],
        "llama.attention.key_length": config["head_dim"],
        "llama.attention.value_length": config["head_dim"],
        "llama.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "llama.context_length": config["max_position_embeddings"],
        "llama.rope.dimension_count": config["head_dim"],
        "llama.rope.freq_base": config["rope_theta"],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": vocab,
        "tokenizer.ggml.token_type": [3 if token in special else 1 for token in vocab],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in tokenizer["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": config["bos_token_id"],
        "tokenizer.ggml.eos_token_id": config["eos_token_id"],
        "tokenizer.chat_template": json.loads((folder / "tokenizer_config.json").read_text())["chat_template"],
    }


def model_tensors(folder: Path) -> dict[str, RawTensor]:
    """The weights of a tiny llama model folder under their GGUF names, query and key rows interleaved."""
    config = json.loads((folder / "config.json").read_text())
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    tensors = {}
    for name, array in load_file(folder / "model.safetensors").items():
        stem = name.removesuffix(".weight")
        prefix, _, layer_name = stem.removeprefix("model.layers.").partition(".")
        gguf = _NAMES[layer_name] if stem.startswith("model.layers.") else _NAMES[stem]
        rows = array
        if gguf in heads:
            halves = array.reshape(heads[gguf], 2, -1, array.shape[1])
            rows = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(array.shape)
        full = f"blk.{prefix}.{gguf}.weight" if stem.startswith("model.layers.") else f"{gguf}.weight"
        tensors[full] = float_tensor(rows)
    return tensors


@dataclass(frozen=True)
class Variants:
    """Writes the GGUF file of a model folder with other metadata (None removes a key) or other tensors."""

    model: Path
    file: Path

    def __call__(
        self, metadata: Mapping[str, Any] | None = None, tensors: Mapping[str, RawTensor | None] | None = None
    ) -> Path:
        keys = {**model_metadata(self.model), **(metadata or {})}
        all_tensors = {**model_tensors(self.model), **(tensors or {})}
        return write_gguf(
            self.file,
            {key: value for key, value in keys.items() if value is not None},
            {name: tensor for name, tensor in all_tensors.items() if tensor is not None},
        )
