"""Which files of a repository are a model's, and what may be called how."""

from __future__ import annotations

import json

import pytest

from mlxd.daemon.downloads.messages import DownloadFailed
from mlxd.daemon.downloads.names import repo_complaint, revision_complaint
from mlxd.daemon.downloads.selection import MAX_FILES, HubFile, named_by_index, select

MODEL = ["config.json", "model.safetensors"]
INDEX = "model.safetensors.index.json"


def selected(*names):
    return [file.name for file in select("a/b", [HubFile(name, 1, "a" * 64) for name in names])]


def refusal(*names):
    with pytest.raises(DownloadFailed) as caught:
        selected(*names)
    return caught.value.failed


@pytest.mark.parametrize(
    "name",
    [
        "generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.txt",
        "merges.txt", "qwen.tiktoken", "chat_template.jinja", "chat_template.json", "preprocessor_config.json",
        "modules.json", "1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors", "vocab.json",
        "sentencepiece.bpe.model", "additional_chat_templates/tool.jinja", INDEX, "model-00001-of-00002.safetensors",
    ],
)  # fmt: skip
def test_what_a_model_needs_is_selected(name):
    assert name in selected(*MODEL, name)


@pytest.mark.parametrize(
    "name",
    [
        "README.md", "pytorch_model.bin", "model.gguf", "onnx/model.onnx", "weights.pth", "modeling_x.py", "logo.png",
        "original/consolidated.00.safetensors", "consolidated.safetensors", "adapter.safetensors", ".gitattributes",
        ".hidden.json", "../x.json", "/x.json", "1_Pooling/../x.json", "a/b/c.json", "1_Pooling/pytorch_model.bin",
        "1_Pooling//config.json", "x\n.json", "x\\y.json", "x" * 200 + ".json", "é.json", "openvino/config.json", "",
    ],
)  # fmt: skip
def test_what_it_does_not_need_or_cannot_be_written_safely_is_not(name):
    assert selected(*MODEL, name) == MODEL


def test_weights_come_last():
    assert selected("model-1.safetensors", "1_Dense/model.safetensors", "tokenizer.json", "config.json") == [
        "config.json", "tokenizer.json", "1_Dense/model.safetensors", "model-1.safetensors",
    ]  # fmt: skip


def test_names_that_differ_in_letter_case_alone_are_one_file():
    assert selected(*MODEL, "Tokenizer.json", "tokenizer.json") == [
        "config.json",
        "tokenizer.json",
        "model.safetensors",
    ]


def test_what_is_no_model_is_refused():
    assert "mlxd import" in refusal("config.json", "model-Q4.gguf").message
    assert "no safetensors" in refusal("config.json", "pytorch_model.bin").message
    assert "no safetensors" in refusal("config.json", "consolidated.safetensors").message
    assert "config.json" in refusal("model.safetensors").message
    assert refusal(*MODEL, *(f"{n}.json" for n in range(MAX_FILES))).reason == "bad_repository"


def narrowed(index, *names):
    files = [HubFile(name, 1, "a" * 64) for name in names]
    return [
        file.name
        for file in named_by_index("a/b", files, index if isinstance(index, bytes) else json.dumps(index).encode())
    ]


def test_of_two_copies_the_one_that_the_index_names_is_taken():
    shards = ["model-1.safetensors", "model-2.safetensors"]
    index = {"weight_map": {"a": shards[0], "b": shards[1], "c": shards[1]}}
    assert narrowed(index, *MODEL, *shards, INDEX) == ["config.json", *shards, INDEX]


def test_an_index_of_which_nothing_is_there_is_left_out():
    index = {"weight_map": {"a": "model-1.safetensors"}}
    assert narrowed(index, *MODEL, INDEX) == MODEL


@pytest.mark.parametrize(
    "index",
    [
        b"nonsense", b"\xff", b"[" * 10_000, {"weight_map": 1}, {}, {"weight_map": {}},
        {"weight_map": {"a": "model.safetensors", "b": "../../etc/passwd"}},
    ],
)  # fmt: skip
def test_an_index_that_is_none_is_refused(index):
    with pytest.raises(DownloadFailed) as caught:
        narrowed(index, *MODEL, INDEX)
    assert caught.value.failed.reason == "bad_repository"


def test_repositories_are_named_as_on_the_hub():
    for good in ("gpt2", "mlx-community/Qwen3-8B-4bit", "a/b_c.d-e", "A1/9"):
        assert repo_complaint(good) is None, good
    for bad in (
        "",
        "a/",
        "/a",
        "a/b/c",
        "a b",
        "../a",
        "a--b",
        "a..b",
        ".a",
        "a.",
        "-a",
        "a.git",
        "é",
        "a\n",
        "x" * 97,
    ):
        assert repo_complaint(bad), bad


def test_revisions_are_branches_tags_and_commits():
    for good in ("main", "v1.0", "refs/pr/1", "c0ffee", "feature/x_y"):
        assert revision_complaint(good) is None, good
    for bad in ("", "-x", "a b", "a..b", "/a", "a\n", "a?b", "x" * 201):
        assert revision_complaint(bad), bad
