"""What a GGUF file of architecture llama becomes: the model's config, and a name for each tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlxd.engines.gguf_errors import CorruptGguf, UnsupportedGguf
from mlxd.engines.gguf_file import GgufFile, Metadata, TensorInfo
from mlxd.engines.gguf_tensors import Floats, dense, read_tensor

ARCHITECTURE = "llama"
_ROPE_FACTORS = "rope_freqs.weight"
# What Llama 3.1 and later were scaled with; only the factor differs between them.
_LLAMA3_ROPE = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """One tensor of the new model: where it comes from, and its heads when its rows must be put in order."""

    name: str
    source: TensorInfo
    heads: int | None = None


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """The sizes that the metadata gives; all but `layers` count numbers in a tensor or heads."""

    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class LlamaPlan:
    """The new model: its config without tokens and types, and its tensors."""

    config: Mapping[str, Any]
    tensors: tuple[TensorPlan, ...]
    vocab_size: int
    context_length: int


def plan_llama(file: GgufFile) -> LlamaPlan:
    """Map a GGUF file to a llama model. Raises UnsupportedGguf, MissingMetadata and CorruptGguf."""
    _check_supported(file)
    metadata = file.metadata
    shape = _shape(metadata, len(file.tensors))
    vocab_size = _tensor(file, "token_embd.weight").shape[0]
    tensors = _plan_tensors(file, shape, vocab_size)
    tied = "output.weight" not in file.tensors
    context_length = metadata.positive("llama.context_length")
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "intermediate_size": shape.inner,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "rms_norm_eps": _shortest(metadata.get("llama.attention.layer_norm_rms_epsilon", float)),
        "vocab_size": vocab_size,
        "max_position_embeddings": context_length,
        "rope_theta": _shortest(metadata.find("llama.rope.freq_base", float, 10000.0)),
        "tie_word_embeddings": tied,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
    }
    scaling = _rope_scaling(file, shape.head_dim, config["rope_theta"])
    if scaling is not None:
        config["rope_scaling"] = scaling
    return LlamaPlan(config, tensors, vocab_size, context_length)


def _check_supported(file: GgufFile) -> None:
    metadata = file.metadata
    architecture = metadata.get("general.architecture", str)
    if architecture != ARCHITECTURE:
        raise UnsupportedGguf(
            f"the architecture {architecture} is not supported, only {ARCHITECTURE}; "
            "pull an MLX version of the model from the Hugging Face hub instead"
        )
    if metadata.find("split.count", int, 1) > 1:
        raise UnsupportedGguf("the model is split over several files; merge them with `llama-gguf-split --merge`")
    if metadata.find("llama.expert_count", int, 0) > 0:
        raise UnsupportedGguf("llama models with experts are not supported, only dense ones")


def _shape(metadata: Metadata, tensor_count: int) -> LlamaShape:
    def size(key: str) -> int:
        return metadata.positive(f"llama.{key}")

    hidden, heads = size("embedding_length"), size("attention.head_count")
    if isinstance(metadata.values.get("llama.attention.head_count_kv"), list):
        raise UnsupportedGguf("a number of key-value heads for each layer is not supported, only one for all")
    kv_heads = size("attention.head_count_kv") if "llama.attention.head_count_kv" in metadata.values else heads
    head_dim = metadata.find("llama.attention.key_length", int, hidden // heads)
    rotated = metadata.find("llama.rope.dimension_count", int, head_dim)
    if head_dim != metadata.find("llama.attention.value_length", int, head_dim) or rotated != head_dim:
        raise UnsupportedGguf("attention heads with keys, values and rotation of unequal length are not supported")
    if head_dim < 1 or head_dim % 2 or heads % kv_heads:
        raise CorruptGguf(f"{heads} heads of {head_dim} numbers and {kv_heads} key-value heads do not fit together")
    layers = size("block_count")
    if layers > tensor_count:
        raise CorruptGguf(f"the file names {layers} layers but holds {tensor_count} tensors")
    return LlamaShape(layers, hidden, size("feed_forward_length"), heads, kv_heads, head_dim)


def _plan_tensors(file: GgufFile, shape: LlamaShape, vocab_size: int) -> tuple[TensorPlan, ...]:
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    # name in the file, name in the model, shape, heads
    rows: list[tuple[str, str, tuple[int, ...], int | None]] = [
        ("token_embd", "model.embed_tokens", (vocab_size, shape.hidden), None),
        ("output_norm", "model.norm", (shape.hidden,), None),
    ]
    if "output.weight" in file.tensors:
        rows.append(("output", "lm_head", (vocab_size, shape.hidden), None))
    inner: list[tuple[str, str, tuple[int, ...], int | None]] = [
        ("attn_q", "self_attn.q_proj", (queries, shape.hidden), shape.heads),
        ("attn_k", "self_attn.k_proj", (keys, shape.hidden), shape.kv_heads),
        ("attn_v", "self_attn.v_proj", (keys, shape.hidden), None),
        ("attn_output", "self_attn.o_proj", (shape.hidden, queries), None),
        ("ffn_gate", "mlp.gate_proj", (shape.inner, shape.hidden), None),
        ("ffn_up", "mlp.up_proj", (shape.inner, shape.hidden), None),
        ("ffn_down", "mlp.down_proj", (shape.hidden, shape.inner), None),
        ("attn_norm", "input_layernorm", (shape.hidden,), None),
        ("ffn_norm", "post_attention_layernorm", (shape.hidden,), None),
    ]
    for layer in range(shape.layers):
        rows += [(f"blk.{layer}.{a}", f"model.layers.{layer}.{b}", size, heads) for a, b, size, heads in inner]
    plans = tuple(
        TensorPlan(f"{name}.weight", _tensor(file, f"{source}.weight", size), heads)
        for source, name, size, heads in rows
    )
    unknown = set(file.tensors) - {plan.source.name for plan in plans} - {_ROPE_FACTORS}
    if unknown:
        raise UnsupportedGguf(
            f"tensor {min(unknown)!r} is not part of a plain llama model, which is all that is supported"
        )
    return plans


def _tensor(file: GgufFile, name: str, shape: tuple[int, ...] | None = None) -> TensorInfo:
    info = file.tensors.get(name)
    if info is None:
        raise CorruptGguf(f"the file lacks the tensor {name!r}")
    if shape is not None and info.shape != shape:
        raise CorruptGguf(f"tensor {name!r} has the shape {info.shape}, the metadata asks for {shape}")
    return info


def _rope_scaling(file: GgufFile, head_dim: int, theta: float) -> dict[str, Any] | None:
    # 1. factors for each frequency: Llama 3.1 and later
    # 2. one factor for all positions
    # 3. none
    metadata = file.metadata
    kind = metadata.find("llama.rope.scaling.type", str, "none")
    if _ROPE_FACTORS in file.tensors:
        info = _tensor(file, _ROPE_FACTORS, (head_dim // 2,))
        return _llama3_scaling(dense(read_tensor(file.path, info), info), head_dim, theta)
    if kind == "linear":
        return {"rope_type": "linear", "factor": _shortest(metadata.get("llama.rope.scaling.factor", float))}
    if kind != "none":
        raise UnsupportedGguf(f"rope scaling {kind!r} is not supported, only none, linear and Llama 3's")
    factor = metadata.find("llama.rope.scale_linear", float, 1.0)
    return {"rope_type": "linear", "factor": _shortest(factor)} if factor != 1.0 else None


def _llama3_scaling(factors: Floats, head_dim: int, theta: float) -> dict[str, Any]:
    factor = float(factors.max())
    wavelengths = 2 * np.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    low, high, length = _LLAMA3_ROPE.values()
    smooth = np.clip((length / wavelengths - low) / (high - low), 0, 1)
    expected = 1 / ((1 - smooth) / factor + smooth)
    if not np.allclose(factors, expected, rtol=1e-3):
        raise UnsupportedGguf(f"the factors in {_ROPE_FACTORS!r} are not Llama 3's, which are all that is supported")
    return {"rope_type": "llama3", "factor": _shortest(factor), **_LLAMA3_ROPE}


def _shortest(value: float) -> float:
    """The number as it was before it became a 32-bit float."""
    return float(str(np.float32(value)))
