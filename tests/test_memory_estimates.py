"""Estimates from files alone: whole folders are measured, broken and hostile ones become a sentence."""

from __future__ import annotations

import json
import time

import pytest

from mlxd.memory.estimates import (
    ModelEstimate,
    SlidingLayers,
    inspect_folder,
    kv_bytes,
)

SHAPE = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 32,
    "max_position_embeddings": 4096,
}
ITEMSIZES = {"F32": 4, "F16": 2, "BF16": 2, "U32": 4, "U8": 1}


def header_of(tensors):
    """A valid header and its data length; `tensors` maps names to a type and a shape."""
    header, end = {"__metadata__": {"format": "mlx"}}, 0
    for name, (dtype, shape) in tensors.items():
        length = ITEMSIZES[dtype]
        for size in shape:
            length *= size
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + length]}
        end += length
    return header, end


def write_file(path, header, data):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(data))


def write_model(folder, tensors=None, name="model.safetensors", **config):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**SHAPE, **config}))
    write_file(folder / name, *header_of(tensors or {"a.weight": ("F32", [4, 8])}))
    return folder


def test_a_whole_folder_has_no_problem(tmp_path):
    estimate = inspect_folder(write_model(tmp_path, {"a.weight": ("F32", [4, 8]), "b": ("F32", [])}))
    assert estimate == ModelEstimate(132, 2 * 2 * 2 * 8 * 4, 4096, None, attention_heads=4, itemsize=4)


def test_a_tensor_in_two_files_counts_once(tmp_path):
    write_model(tmp_path, {"a": ("F32", [8]), "b": ("F32", [2])})
    write_model(tmp_path, {"a": ("F32", [8]), "c": ("F32", [1])}, name="model-00001-of-00001.safetensors")
    assert inspect_folder(tmp_path).weight_bytes == 32 + 8 + 4


@pytest.mark.parametrize(("tied", "expected"), [(True, 64), (False, 128), (None, 128)])
def test_a_tied_output_head_counts_once(tmp_path, tied, expected):
    tensors = {"model.embed_tokens.weight": ("F32", [4, 4]), "lm_head.weight": ("F32", [4, 4])}
    assert inspect_folder(write_model(tmp_path, tensors, tie_word_embeddings=tied)).weight_bytes == expected


@pytest.mark.parametrize(
    ("tensors", "itemsize"),
    [
        ({"a": ("BF16", [100]), "norm": ("F32", [3])}, 2),
        ({"a": ("F16", [3]), "b": ("F32", [100])}, 4),
        ({"w.weight": ("U32", [100]), "w.scales": ("F32", [3]), "embed": ("BF16", [90])}, 4),
        ({"w.weight": ("U32", [100]), "w.scales": ("U8", [3]), "norm": ("BF16", [9])}, 2),
        ({"w.weight": ("U32", [100])}, 2),
    ],
)
def test_the_cache_has_the_type_the_model_computes_in(tmp_path, tensors, itemsize):
    assert inspect_folder(write_model(tmp_path, tensors)).itemsize == itemsize


def per_token(tmp_path, **config):
    """Numbers kept per token; the tensors are float16."""
    estimate = inspect_folder(write_model(tmp_path, {"a": ("F16", [4])}, **config))
    assert estimate.problem is None
    return estimate.kv_bytes_per_token // 2, estimate


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, 2 * 2 * 2 * 8),
        ({"num_key_value_heads": None}, 2 * 2 * 4 * 8),
        ({"head_dim": 16}, 2 * 2 * 2 * 16),
        ({"v_head_dim": 4}, 2 * 2 * (8 + 4)),
        ({"kv_lora_rank": 24, "qk_rope_head_dim": 8}, 2 * 32),
        ({"layer_types": ["linear_attention", "full_attention", "linear_attention"]}, 32),
        ({"layer_types": ["mamba", "attention", "moe", "conv", "unheard_of"]}, 64),
        ({"full_attention_interval": 4, "num_hidden_layers": 8}, 64),
        ({"hybrid_override_pattern": "M-M*-M*"}, 64),
        ({"full_attn_idxs": [1], "num_hidden_layers": 5}, 32),
        ({"attn_layer_period": 3, "attn_layer_offset": 1, "num_hidden_layers": 6}, 64),
        ({"linear_attn_config": {"kda_layers": [1, 2]}, "num_hidden_layers": 3}, 32),
        ({"model_type": "mamba2"}, 0),
        ({"num_key_value_heads": [1, 3]}, 4 * 16),
        ({"text_config": {"num_hidden_layers": 4}}, 4 * 32),
    ],
)
def test_keys_and_values_are_counted_where_a_layer_keeps_them(tmp_path, config, expected):
    numbers, estimate = per_token(tmp_path, **config)
    assert numbers == expected
    assert estimate.note is None


def test_sliding_layers_are_capped_only_where_the_model_really_rotates(tmp_path):
    layers = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 512}
    numbers, estimate = per_token(tmp_path, **layers)
    assert (numbers, estimate.sliding) == (64, SlidingLayers(64, 512))
    numbers, estimate = per_token(tmp_path, model_type="qwen2", **layers)
    assert (numbers, estimate.sliding) == (64, None)


def test_a_shape_that_is_not_told_is_zero_with_a_note(tmp_path):
    _, estimate = per_token(tmp_path, num_attention_heads=None, hidden_size=None, num_key_value_heads=None)
    assert estimate.kv_bytes_per_token == 0
    assert "key-value cache" in estimate.note


@pytest.mark.parametrize("value", [-1, 0, True, "4096", [4096], float("nan"), float("inf"), 1 << 70, {"a": 1}])
def test_odd_numbers_in_a_config_are_unknown(tmp_path, value):
    _, estimate = per_token(tmp_path, max_position_embeddings=value, num_hidden_layers=value)
    assert (estimate.context_length, estimate.kv_bytes_per_token) == (0, 0)


def test_a_billion_layers_cost_no_time(tmp_path):
    started = time.process_time()
    per_token(tmp_path, num_hidden_layers=4_000_000_000, full_attention_interval=1)
    assert time.process_time() - started < 1


def test_a_context_given_as_a_whole_float_counts(tmp_path):
    assert per_token(tmp_path, max_position_embeddings=8192.0)[1].context_length == 8192


def test_a_batch_cache_is_as_wide_as_its_longest_row():
    assert kv_bytes(8, 2048, 4096) == 64 << 20
    assert kv_bytes(1, 1, 10) == kv_bytes(1, 256, 10) == 2560
    assert kv_bytes(1, 257, 10) == 5120
    assert kv_bytes(0, 100, 10) == kv_bytes(3, 0, 10) == 0


def test_sliding_layers_stop_growing_at_their_window():
    sliding = SlidingLayers(6, 512)
    assert kv_bytes(2, 256, 10, sliding=sliding) == 2 * 256 * 10
    assert kv_bytes(2, 2048, 10, sliding=sliding) == 2 * (2048 * 4 + 512 * 6)
