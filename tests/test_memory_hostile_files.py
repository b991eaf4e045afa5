"""Broken and hostile model folders: each becomes a sentence, none an exception."""

from __future__ import annotations

import json
import os
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxd.memory.estimates import ModelEstimate, inspect_folder, kv_bytes

SHAPE = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 32,
    "max_position_embeddings": 4096,
}


def write_file(path, header, data):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(data))


def write_model(folder, **config):
    """A whole model of one tensor of 128 bytes."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**SHAPE, **config}))
    tensor = {"dtype": "F32", "shape": [4, 8], "data_offsets": [0, 128]}
    write_file(folder / "model.safetensors", {"__metadata__": {"format": "mlx"}, "a.weight": tensor}, 128)
    return folder


def problem_of(folder):
    estimate = inspect_folder(folder)
    assert isinstance(estimate.problem, str)
    estimate.problem.encode()
    assert len(estimate.problem) < 500
    return estimate.problem


def test_an_empty_or_absent_folder_has_no_config(tmp_path):
    assert problem_of(tmp_path) == "no config.json"
    assert problem_of(tmp_path / "absent") == "no config.json"
    assert "config.json cannot be read" in problem_of(tmp_path / "nul\0")


def test_a_folder_without_weights_says_so_and_keeps_what_is_known(tmp_path):
    (write_model(tmp_path) / "model.safetensors").rename(tmp_path / "pytorch.bin")
    assert problem_of(tmp_path) == "no safetensors weights (model*.safetensors)"
    assert inspect_folder(tmp_path).context_length == 4096


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not valid JSON"),
        (b"[1]", "not a JSON object"),
        (b"[" * 200_000, "not valid JSON"),
        (b'{"a":' * 200_000, "not valid JSON"),
        (b"\xff\xfe\x00", "not valid JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b" " * 32_000_001, "larger than"),
    ],
)
def test_a_config_that_is_no_object_is_a_problem(tmp_path, content, words):
    (write_model(tmp_path) / "config.json").write_bytes(content)
    assert words in problem_of(tmp_path)
    assert inspect_folder(tmp_path).weight_bytes == 128


GOOD = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ({}, "holds no tensors"),
        ({"a": {**GOOD, "dtype": "F64"}}, "F64, which MLX cannot read"),
        ({"a": {**GOOD, "dtype": 4}}, "bad header"),
        ({"a": {**GOOD, "shape": [-2]}}, "bad header"),
        ({"a": {**GOOD, "shape": [3]}}, "other offsets than its shape"),
        ({"a": {**GOOD, "shape": "x"}}, "bad header"),
        ({"a": {**GOOD, "shape": [1] * 17}}, "bad header"),
        ({"a": {**GOOD, "shape": [1 << 62] * 16}}, "other offsets than its shape"),
        ({"a": {**GOOD, "data_offsets": [-8, 0]}}, "bad header"),
        ({"a": {**GOOD, "data_offsets": [8, 0]}}, "other offsets"),
        ({"a": {**GOOD, "data_offsets": [0, 8, 9]}}, "bad header"),
        ({"a": {**GOOD, "data_offsets": [0, 1 << 70]}}, "bad header"),
        ({"a": {**GOOD, "data_offsets": [0.0, 8.0]}}, "data_offsets"),
        ({"a": GOOD, "b": GOOD}, "overlaps"),
        ({"a": [GOOD]}, "bad header"),
        ({"a": None}, "bad header"),
        ({"a": {"x" * 5000: 1}}, "too long"),
        ({"a\n" * 500: []}, "bad header"),
        ([], "bad header"),
        (b"[" * 200_000, "bad header"),
        (b'{"a":' + b"[" * 200_000, "bad header"),
        (b'{"a": NaN}', "bad header"),
        (b"\xff" * 40, "bad header"),
        (b'{"\xff": {}}', "bad header"),
        ({"a": {**GOOD, "shape": [4], "data_offsets": [0, 16]}}, "truncated: 8 of 16 bytes"),
    ],
)
def test_a_hostile_header_is_a_problem(tmp_path, header, words):
    write_file(write_model(tmp_path) / "model.safetensors", header, 8)
    assert words in problem_of(tmp_path)
    assert "model.safetensors" in problem_of(tmp_path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "truncated"),
        (b"\x08\0\0", "truncated"),
        ((1 << 63).to_bytes(8, "little") + b"{}", "not a safetensors file"),
        (((1 << 64) - 1).to_bytes(8, "little"), "not a safetensors file"),
        ((50_000_000).to_bytes(8, "little") + b"{}", "truncated"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
    ],
)
def test_a_file_that_is_not_whole_is_a_problem(tmp_path, content, words):
    (write_model(tmp_path) / "model.safetensors").write_bytes(content)
    assert words in problem_of(tmp_path)


@pytest.mark.parametrize("cut", [1, 100, 127, 128, 129, 200])
def test_every_cut_is_noticed(tmp_path, cut):
    file = write_model(tmp_path) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-cut])
    assert "model.safetensors is truncated" in problem_of(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_only_regular_files_are_read(tmp_path, name):
    path = write_model(tmp_path) / name
    path.unlink()
    os.mkfifo(path)
    assert "not a regular file" in problem_of(tmp_path)
    path.unlink()
    path.symlink_to("/dev/zero")
    assert "not a regular file" in problem_of(tmp_path)
    path.unlink()
    path.symlink_to(name)
    assert "cannot be read" in problem_of(tmp_path)
    path.unlink()
    path.mkdir()
    assert "not a regular file" in problem_of(tmp_path)


def test_links_to_files_are_followed_and_broken_ones_are_missing_files(tmp_path):
    folder = write_model(tmp_path / "model")
    (folder / "model.safetensors").rename(tmp_path / "blob")
    (folder / "model.safetensors").symlink_to(tmp_path / "blob")
    assert inspect_folder(folder).problem is None
    (tmp_path / "blob").unlink()
    assert problem_of(folder) == "model.safetensors is missing"


@pytest.mark.skipif(sys.platform == "darwin", reason="the file system refuses such names")
def test_names_that_cannot_be_encoded_still_make_a_sentence(tmp_path):
    write_model(tmp_path)
    (tmp_path / os.fsdecode(b"model-\xff\n.safetensors")).write_bytes(b"")
    assert "truncated" in problem_of(tmp_path)


def write_index(folder, weight_map):
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_a_shard_the_index_lists_must_be_there(tmp_path):
    write_index(write_model(tmp_path), {"a.weight": "model.safetensors", "b.weight": "model-2.safetensors"})
    assert problem_of(tmp_path).startswith("model-2.safetensors, listed in model.safetensors.index.json, is missing")


def test_an_index_left_from_other_shards_is_no_problem_when_no_tensor_is_missing(tmp_path):
    write_index(write_model(tmp_path), {"a.weight": "model-00001-of-00009.safetensors"})
    assert inspect_folder(tmp_path).problem is None


@pytest.mark.parametrize("content", ["[]", "{", '{"weight_map": []}', '{"weight_map": {"z": {"y": [1]}}}'])
def test_a_broken_index_is_a_problem(tmp_path, content):
    (write_model(tmp_path) / "model.safetensors.index.json").write_text(content)
    assert "model.safetensors.index.json" in problem_of(tmp_path)


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from(
    [
        *SHAPE,
        "head_dim",
        "text_config",
        "layer_types",
        "sliding_window",
        "kv_lora_rank",
        "qk_rope_head_dim",
        "hybrid_override_pattern",
        "linear_attn_config",
        "num_kv_shared_layers",
        "attn_layer_period",
        "attn_layer_offset",
        "tie_word_embeddings",
        "global_head_dim",
    ]
)
MODELS = st.sampled_from(["llama", "gemma3_text", "gemma4_text", "minicpm3", "deepseek_v32", "qwen3_next"])


@settings(deadline=None, max_examples=150)
@given(config=st.dictionaries(KEYS, ODD), model=MODELS | ODD, header=st.dictionaries(st.text(max_size=5), ODD))
def test_nothing_in_a_folder_raises(tmp_path_factory, config, model, header):
    folder = write_model(tmp_path_factory.mktemp("odd"), **{**config, "model_type": model})
    estimate = inspect_folder(folder)
    assert estimate.problem is None
    assert min(estimate.kv_bytes_per_token, estimate.context_length, estimate.attention_heads) >= 0
    assert kv_bytes(1, 4096, estimate.kv_bytes_per_token, sliding=estimate.sliding) >= 0
    write_file(folder / "model.safetensors", header, 64)
    problem_of(folder)


@settings(deadline=None, max_examples=150)
@given(noise=st.binary(min_size=1, max_size=12), at=st.integers(min_value=0))
def test_no_damage_to_a_file_raises(tmp_path_factory, noise, at):
    folder = write_model(tmp_path_factory.mktemp("damaged"))
    for name in ("model.safetensors", "config.json"):
        content = bytearray((folder / name).read_bytes())
        start = at % len(content)
        content[start : start + len(noise)] = noise
        (folder / name).write_bytes(content)
    assert isinstance(inspect_folder(folder), ModelEstimate)
