"""GGUF files become model folders, or are refused for a named reason."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
from gguf_files import RawTensor, Variants, float_tensor, model_metadata, model_tensors, write_gguf
from tiny_models import build_tiny_model

from mlxd.engines.gguf import (
    ImportReport,
    import_gguf,
)
from mlxd.engines.gguf_file import TENSOR_TYPES
from mlxd.engines.gguf_tokenizer import STYLES

TEXT = "def f(x1, 2345):\n\n    return 'it''s' # <|im_end|> café ② 😀"


def silent(message: str) -> None:
    pass


def convert(source: Path, out: Path, quantize: str = "none", **options: Any) -> ImportReport:
    return import_gguf(source, out, quantize, silent, **options)


@pytest.fixture(scope="module")
def untied_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("untied") / "m"
    return build_tiny_model(folder, "micro", tie_word_embeddings=False, num_hidden_layers=2)


@pytest.fixture(scope="module")
def gguf(untied_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    return write_gguf(path, model_metadata(untied_model), model_tensors(untied_model))


@pytest.fixture
def altered(untied_model: Path, tmp_path: Path) -> Variants:
    return Variants(untied_model, tmp_path / "altered.gguf")


def greedy(folder: Path, prompt: str, limit: int = 12) -> str:
    model, tokenizer = mlx_lm.load(str(folder))
    return mlx_lm.generate(model, tokenizer, prompt, max_tokens=limit)


def quantised_tensor(number: int, rows: int, columns: int) -> RawTensor:
    _, block, size = TENSOR_TYPES[number]
    rng = np.random.default_rng(number)
    blocks = rng.integers(0, 256, (rows * columns // block, size), dtype=np.uint8)
    halves = {2: [0], 3: [0, 2], 8: [0], 12: [0, 2]}[number]
    for at in halves:
        scale = (rng.random((len(blocks), 1)) * 0.01).astype("<f2")
        blocks[:, at : at + 2] = scale.view(np.uint8).reshape(-1, 2)
    return RawTensor(number, (rows, columns), blocks.tobytes())


@pytest.mark.parametrize("tied", [True, False])
def test_an_imported_model_has_the_weights_text_and_tokens_of_the_original(tmp_path: Path, tied: bool):
    original = build_tiny_model(tmp_path / "original", "micro", tie_word_embeddings=tied)
    source = write_gguf(tmp_path / "m.gguf", model_metadata(original), model_tensors(original))
    report = convert(source, tmp_path / "out")
    before, after = (mx.load(str(tmp_path / name / "model.safetensors")) for name in ("original", "out"))
    assert before.keys() == after.keys()
    assert all(mx.array_equal(before[name], after[name]) for name in before)
    assert ("lm_head.weight" in after) is not tied
    assert greedy(tmp_path / "original", TEXT) == greedy(tmp_path / "out", TEXT)
    tokenizers = [mlx_lm.utils.load_tokenizer(tmp_path / name) for name in ("original", "out")]
    assert tokenizers[0].encode(TEXT) == tokenizers[1].encode(TEXT)
    assert tokenizers[1].decode(tokenizers[1].encode(TEXT)) == TEXT
    assert tokenizers[0].chat_template == tokenizers[1].chat_template
    assert report.parameters == sum(array.size for array in after.values())
    assert report.weight_bytes == sum(array.nbytes for array in after.values())


def test_the_config_says_what_the_metadata_says(gguf: Path, tmp_path: Path):
    report = convert(gguf, tmp_path / "out", dtype="bfloat16")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["rms_norm_eps"], config["rope_theta"]) == (1e-6, 10000.0)
    assert (config["head_dim"], config["num_key_value_heads"], config["tie_word_embeddings"]) == (32, 1, False)
    assert config["max_position_embeddings"] == report.context_length == 32768
    assert config["torch_dtype"] == report.dtype == "bfloat16"
    assert mx.load(str(tmp_path / "out" / "model.safetensors"))["lm_head.weight"].dtype == mx.bfloat16
    # <|endoftext|> ends an answer too
    generation = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert generation["eos_token_id"] == config["eos_token_id"] == [0, 2]


@pytest.mark.parametrize(("quantize", "tolerance"), [("8", 0.006), ("4", 0.1)])
def test_a_quantised_import_loads_and_stays_near_the_original(gguf, tmp_path: Path, quantize: str, tolerance: float):
    report = convert(gguf, tmp_path / "plain")
    small = convert(gguf, tmp_path / "small", quantize)
    assert small.weight_bytes < report.weight_bytes / 2
    assert small.bits == int(quantize)
    plain, arrays = (mx.load(str(tmp_path / name / "model.safetensors")) for name in ("plain", "small"))
    for name in plain:
        if plain[name].ndim == 1:
            assert mx.array_equal(arrays[name], plain[name])
            continue
        module = name.removesuffix("weight")
        parts = (arrays[module + part] for part in ("weight", "scales", "biases"))
        again = mx.dequantize(*parts, group_size=64, bits=int(quantize))
        assert 0 < (mx.linalg.norm(again - plain[name]) / mx.linalg.norm(plain[name])).item() < tolerance
    assert greedy(tmp_path / "small", TEXT, 4)
    assert arrays["model.embed_tokens.scales"].dtype == mx.float32
    assert arrays["lm_head.weight"].dtype == mx.uint32


def test_rows_that_64_does_not_divide_get_groups_of_32_and_odd_ones_stay_whole(tmp_path: Path):
    original = build_tiny_model(tmp_path / "m", "micro", hidden_size=96, intermediate_size=40)
    source = write_gguf(tmp_path / "m.gguf", model_metadata(original), model_tensors(original))
    convert(source, tmp_path / "out", "4")
    arrays = mx.load(str(tmp_path / "out" / "model.safetensors"))
    assert arrays["model.layers.0.mlp.up_proj.scales"].shape == (40, 3)
    assert arrays["model.layers.0.self_attn.o_proj.scales"].shape == (96, 1)
    assert "model.layers.0.mlp.down_proj.scales" not in arrays
    greedy(tmp_path / "out", TEXT, 2)


@pytest.mark.parametrize(("number", "quantize"), [(2, "4"), (3, "4"), (12, "4"), (8, "8")])
def test_the_files_own_groups_are_kept_bit_for_bit(tmp_path: Path, number: int, quantize: str):
    original = build_tiny_model(tmp_path / "m", "micro", hidden_size=256, head_dim=32)
    tensors = model_tensors(original)
    tensors["blk.0.attn_q.weight"] = quantised_tensor(number, 64, 256)
    source = write_gguf(tmp_path / "m.gguf", model_metadata(original), tensors)
    convert(source, tmp_path / "plain")
    convert(source, tmp_path / "kept", quantize)
    plain, kept = (mx.load(str(tmp_path / name / "model.safetensors")) for name in ("plain", "kept"))
    at = "model.layers.0.self_attn.q_proj."
    parts = (kept[at + "weight"], kept[at + "scales"], kept[at + "biases"])
    again = mx.dequantize(*parts, group_size=32, bits=int(quantize))
    assert mx.allclose(again, plain[at + "weight"], rtol=0, atol=1e-6)
    greedy(tmp_path / "kept", TEXT, 2)


def test_large_models_are_written_in_shards_with_an_index(gguf: Path, tmp_path: Path):
    convert(gguf, tmp_path / "one")
    report = convert(gguf, tmp_path / "many", shard_bytes=100_000)
    files = sorted((tmp_path / "many").glob("*.safetensors"))
    index = json.loads((tmp_path / "many" / "model.safetensors.index.json").read_text())
    assert [file.name for file in files] == [
        f"model-{n:05}-of-{len(files):05}.safetensors" for n in range(1, len(files) + 1)
    ]
    assert len(files) > 2
    assert set(index["weight_map"].values()) == {file.name for file in files}
    assert index["metadata"]["total_size"] == report.weight_bytes
    assert greedy(tmp_path / "one", TEXT) == greedy(tmp_path / "many", TEXT)


def test_progress_is_told(gguf: Path, tmp_path: Path):
    messages: list[str] = []
    import_gguf(gguf, tmp_path / "out", "none", messages.append)
    assert messages[0] == "reading the header"
    assert messages[-1].startswith("tensor 21 of 21:")


@pytest.mark.parametrize("suffix", [".zip", ".whl"])
def test_an_archive_with_one_gguf_file_is_unpacked(gguf: Path, tmp_path: Path, suffix: str):
    archive = tmp_path / f"model{suffix}"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.write(gguf, "inner/model.gguf")
        packed.writestr("README", "hello")
    convert(archive, tmp_path / "out")
    assert greedy(tmp_path / "out", TEXT, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [archive.name, "out"]


def test_smollm2_knows_the_capital_of_france(smollm2: Path):
    assert "Paris" in greedy(smollm2, "The capital of France is", 4)


def test_smollm2_splits_numbers_into_digits(smollm2: Path):
    tokenizer = mlx_lm.utils.load_tokenizer(smollm2)
    assert [tokenizer.decode([token]) for token in tokenizer.encode("in 1234")] == ["in", " ", "1", "2", "3", "4"]


def test_half_precision_tensors_keep_their_values(untied_model: Path, altered, tmp_path: Path):
    embedding = mx.load(str(untied_model / "model.safetensors"))["model.embed_tokens.weight"]
    half = np.array(embedding.astype(mx.float16))
    brain = np.array(embedding.astype(mx.bfloat16).view(mx.uint16))
    tensors = {"token_embd.weight": float_tensor(half), "output.weight": RawTensor(30, brain.shape, brain.tobytes())}
    convert(altered(tensors=tensors), tmp_path / "out")
    arrays = mx.load(str(tmp_path / "out" / "model.safetensors"))
    assert mx.array_equal(arrays["model.embed_tokens.weight"], embedding.astype(mx.float16))
    assert mx.array_equal(arrays["lm_head.weight"], embedding.astype(mx.bfloat16))


def encoded(folder: Path, text: str) -> list[str]:
    tokenizer = mlx_lm.utils.load_tokenizer(folder)
    return tokenizer.convert_ids_to_tokens(tokenizer.encode(text))


def test_a_start_token_is_added_when_the_file_or_its_style_says_so(altered, tmp_path: Path):
    convert(altered({"tokenizer.ggml.add_bos_token": True}), tmp_path / "said")
    convert(altered({"tokenizer.ggml.pre": "llama-bpe"}), tmp_path / "style")
    convert(altered({"tokenizer.ggml.pre": "llama-bpe", "tokenizer.ggml.add_bos_token": False}), tmp_path / "not")
    assert encoded(tmp_path / "said", "x") == ["<|endoftext|>", "x"]
    assert encoded(tmp_path / "style", "x") == ["<|endoftext|>", "x"]
    assert encoded(tmp_path / "not", "x") == ["x"]


def test_a_user_defined_token_is_one_token_and_is_seen_in_text(altered, untied_model: Path, tmp_path: Path):
    types = model_metadata(untied_model)["tokenizer.ggml.token_type"]
    tokens = model_metadata(untied_model)["tokenizer.ggml.tokens"]
    tokens[-1], types[-1] = "<tool call>", 4
    merges = model_metadata(untied_model)["tokenizer.ggml.merges"][:-1]
    keys = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types, "tokenizer.ggml.merges": merges}
    convert(altered(keys), tmp_path / "out")
    assert encoded(tmp_path / "out", "a<tool call>b") == ["a", "<tool call>", "b"]
    tokenizer = mlx_lm.utils.load_tokenizer(tmp_path / "out")
    assert tokenizer.decode(tokenizer.encode("a<tool call>b"), skip_special_tokens=True) == "a<tool call>b"


@pytest.mark.parametrize(
    ("style", "pieces"),
    [
        ("gpt-2", "it|'s|ĠAbc|Ġ2345|!!|ĊĊ|Ġx"),
        ("smollm", "it|'s|ĠAbc|Ġ|2|3|4|5|!!|ĊĊ|Ġx"),
        ("llama-bpe", "it|'s|ĠAbc|Ġ|234|5|!!ĊĊ|Ġx"),
        ("qwen2", "it|'s|ĠAbc|Ġ|2|3|4|5|!!ĊĊ|Ġx"),
        ("tekken", "it|'s|ĠAbc|Ġ|2|3|4|5|!!ĊĊ|Ġx"),
        ("default", "it|'|s|ĠAbc|Ġ|234|5|!!|ĊĊ|Ġx"),
    ],
)
def test_each_style_splits_text_its_own_way(style: str, pieces: str):
    split = STYLES[style].split().pre_tokenize_str("it's Abc 2345!!\n\n x")
    assert "|".join(piece for piece, _ in split) == pieces


def test_linear_rope_scaling_is_kept(altered, tmp_path: Path):
    convert(altered({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}), tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}
    greedy(tmp_path / "out", TEXT, 2)


def llama3_factors(head_dim: int, theta: float, factor: float) -> np.ndarray:
    found = []
    for index in range(0, head_dim, 2):
        wavelength = 2 * np.pi * theta ** (index / head_dim)
        smooth = (8192 / wavelength - 1) / 3
        middle = 1 / ((1 - smooth) / factor + smooth)
        found.append(1.0 if wavelength < 2048 else factor if wavelength > 8192 else middle)
    return np.array(found, np.float32)


def test_llama_3_frequency_factors_become_its_rope_scaling(altered, tmp_path: Path):
    factors = float_tensor(llama3_factors(32, 500000.0, 8.0))
    convert(altered({"llama.rope.freq_base": 500000.0}, {"rope_freqs.weight": factors}), tmp_path / "out")
    scaling = json.loads((tmp_path / "out" / "config.json").read_text())["rope_scaling"]
    assert scaling == {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    greedy(tmp_path / "out", TEXT, 2)
