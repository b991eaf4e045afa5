"""What cannot be imported is refused for a named reason, and leaves nothing behind."""

from __future__ import annotations

import struct
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_files import RawTensor, Variants, float_tensor, model_metadata, model_tensors, write_gguf
from tiny_models import build_tiny_model

from mlxd.engines.gguf import (
    CorruptGguf,
    DestinationExists,
    ImportReport,
    MissingMetadata,
    NotGguf,
    UnsupportedGguf,
    import_gguf,
)


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


def refused(source: Path, out: Path, kind: type[Exception], *words: str) -> None:
    """The import fails with that error and those words, and leaves nothing behind."""
    before = set(out.parent.iterdir())
    with pytest.raises(kind) as caught:
        convert(source, out)
    assert type(caught.value) is kind
    for word in words:
        assert word in str(caught.value)
    assert set(out.parent.iterdir()) == before


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"general.architecture": "gemma3"}, ["gemma3", "only llama"]),
        ({"tokenizer.ggml.model": "llama"}, ["'llama'", "only gpt2"]),
        ({"tokenizer.ggml.pre": "deepseek-coder"}, ["deepseek-coder", "smollm"]),
        ({"llama.rope.scaling.type": "yarn"}, ["yarn", "linear"]),
        ({"llama.expert_count": 8}, ["experts"]),
        ({"split.count": 3}, ["split", "--merge"]),
        ({"llama.attention.head_count_kv": [1, 1]}, ["key-value heads"]),
        ({"llama.rope.dimension_count": 16}, ["rotation"]),
    ],
)
def test_what_is_not_supported_is_refused_by_name(altered, tmp_path: Path, metadata: dict, words: list[str]):
    refused(altered(metadata), tmp_path / "out", UnsupportedGguf, *words)


@pytest.mark.parametrize(
    "key",
    [
        "general.architecture",
        "llama.embedding_length",
        "llama.block_count",
        "llama.feed_forward_length",
        "llama.attention.head_count",
        "llama.attention.layer_norm_rms_epsilon",
        "llama.context_length",
        "tokenizer.ggml.model",
        "tokenizer.ggml.tokens",
        "tokenizer.ggml.merges",
        "tokenizer.ggml.eos_token_id",
    ],
)
def test_a_missing_key_is_named(altered, tmp_path: Path, key: str):
    refused(altered({key: None}), tmp_path / "out", MissingMetadata, key)


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"llama.block_count": "two"}, ["llama.block_count", "str"]),
        ({"llama.block_count": 0}, ["llama.block_count"]),
        ({"llama.block_count": 2**31}, ["layers"]),
        ({"llama.block_count": 3}, ["blk.2.attn_q.weight"]),
        ({"llama.embedding_length": 128}, ["token_embd.weight", "(512, 64)", "(512, 128)"]),
        ({"llama.attention.head_count": 3}, ["blk.0.attn_q.weight"]),
        ({"llama.attention.head_count_kv": 3}, ["do not fit"]),
        ({"llama.context_length": 0}, ["llama.context_length"]),
        ({"tokenizer.ggml.tokens": [1, 2]}, ["tokenizer.ggml.tokens"]),
        ({"tokenizer.ggml.tokens": ["a", "a"]}, ["same"]),
        ({"tokenizer.ggml.tokens": [str(n) for n in range(513)]}, ["513", "512"]),
        ({"tokenizer.ggml.token_type": [1]}, ["token types"]),
        ({"tokenizer.ggml.merges": ["a b c d"]}, ["a b c d"]),
        ({"tokenizer.ggml.merges": ["nospace"]}, ["nospace"]),
        ({"tokenizer.ggml.merges": [7]}, ["tokenizer.ggml.merges"]),
        ({"tokenizer.ggml.eos_token_id": 512}, ["eos_token_id"]),
        ({"general.alignment": 24}, ["alignment"]),
    ],
)
def test_a_file_that_contradicts_itself_is_corrupt(altered, tmp_path: Path, metadata: dict, words: list[str]):
    refused(altered(metadata), tmp_path / "out", CorruptGguf, *words)


def test_tensors_that_are_missing_unknown_or_of_another_type_are_named(altered, tmp_path: Path):
    out = tmp_path / "out"
    bias = float_tensor(np.zeros(64, np.float32))
    refused(altered(tensors={"blk.1.ffn_up.weight": None}), out, CorruptGguf, "blk.1.ffn_up.weight")
    refused(altered(tensors={"blk.1.attn_q.bias": bias}), out, UnsupportedGguf, "blk.1.attn_q.bias")
    iq4 = RawTensor(20, (512, 64), bytes(512 * 36))
    refused(altered(tensors={"output.weight": iq4}), out, UnsupportedGguf, "output.weight", "IQ4_NL", "Q4_K")
    future = replace(iq4, type=99)
    refused(altered(tensors={"output.weight": future}), out, UnsupportedGguf, "number 99")
    uneven = RawTensor(12, (512, 64), bytes(512 * 36))
    refused(altered(tensors={"output.weight": uneven}), out, CorruptGguf, "blocks of 256")
    odd_factors = float_tensor(np.full(16, 3, np.float32))
    refused(altered(tensors={"rope_freqs.weight": odd_factors}), out, UnsupportedGguf, "rope_freqs.weight")


@pytest.mark.parametrize("content", [b"", b"GG", b"PK\x03\x04 something else", b"\0" * 100])
def test_another_kind_of_file_is_no_gguf(tmp_path: Path, content: bytes):
    (tmp_path / "file.gguf").write_bytes(content)
    refused(tmp_path / "file.gguf", tmp_path / "out", NotGguf, "file.gguf")


def test_a_folder_or_nothing_at_all_is_no_gguf(tmp_path: Path):
    refused(tmp_path, tmp_path / "out", NotGguf)
    refused(tmp_path / "nothing.gguf", tmp_path / "out", NotGguf, "nothing.gguf")
    refused(tmp_path / "nothing.zip", tmp_path / "out", NotGguf, "nothing.zip")


def test_another_version_is_not_supported(gguf: Path, tmp_path: Path):
    content = bytearray(gguf.read_bytes())
    for version in (struct.pack("<I", 1), struct.pack(">I", 3)):
        content[4:8] = version
        (tmp_path / "v.gguf").write_bytes(content)
        refused(tmp_path / "v.gguf", tmp_path / "out", UnsupportedGguf, "version")


def test_a_file_cut_off_anywhere_is_corrupt(gguf: Path, tmp_path: Path):
    content = gguf.read_bytes()
    cut = tmp_path / "cut.gguf"
    for length in [4, 7, 20, 24, 30, 100, 5000, len(content) // 2, len(content) - 1]:
        cut.write_bytes(content[:length])
        refused(cut, tmp_path / "out", CorruptGguf)


def test_a_flipped_header_is_refused_or_imported_but_never_crashes(altered, tmp_path: Path):
    content = altered().read_bytes()
    rng = np.random.default_rng(0)
    outcomes = set()
    for number in range(60):
        flipped = bytearray(content)
        for at in rng.integers(4, 3000, 3):
            flipped[at] = rng.integers(0, 256)
        (tmp_path / "flip.gguf").write_bytes(flipped)
        try:
            convert(tmp_path / "flip.gguf", tmp_path / f"out-{number}")
            outcomes.add("imported")
        except (CorruptGguf, UnsupportedGguf) as error:
            outcomes.add(type(error).__name__)
    assert "CorruptGguf" in outcomes


def test_an_archive_must_be_sound_and_hold_exactly_one_gguf(gguf: Path, tmp_path: Path):
    archive = tmp_path / "model.zip"
    for names in ([], ["a.gguf", "b.gguf"]):
        with zipfile.ZipFile(archive, "w") as packed:
            for name in names:
                packed.write(gguf, name)
        refused(archive, tmp_path / "out", NotGguf, f"holds {len(names)} GGUF files")
    archive.write_bytes(b"no archive")
    refused(archive, tmp_path / "out", CorruptGguf, "model.zip")
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.write(gguf, "a.gguf")
    broken = bytearray(archive.read_bytes())
    broken[2000:2100] = bytes(100)
    archive.write_bytes(broken)
    refused(archive, tmp_path / "out", CorruptGguf, "model.zip")


def test_a_destination_in_use_is_left_alone(gguf: Path, tmp_path: Path):
    used = tmp_path / "used"
    used.mkdir()
    (used / "precious").write_text("x")
    refused(gguf, used, DestinationExists, "used")
    refused(gguf, used / "precious", DestinationExists)
    assert (used / "precious").read_text() == "x"
    (tmp_path / "empty").mkdir()
    convert(gguf, tmp_path / "empty")
    assert (tmp_path / "empty" / "config.json").exists()


def test_a_failure_half_way_leaves_nothing(gguf: Path, tmp_path: Path):
    def stop(message: str) -> None:
        if message.startswith("tensor 5"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_gguf(gguf, tmp_path / "deep" / "out", "none", stop)
    assert list((tmp_path / "deep").iterdir()) == []
