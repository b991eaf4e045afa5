"""Kinds and architectures, from config.json and the installed packages alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mlxd.registry.model_kind import _SERVED_ENCODERS, Architectures, folder_kind, installed_packages
from mlxd.registry.spec import ModelKind


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({}, ModelKind.TEXT),
        ({"architectures": ["LlamaForCausalLM"]}, ModelKind.TEXT),
        ({"architectures": ["GPT2LMHeadModel"]}, ModelKind.TEXT),
        ({"architectures": "LlamaModel"}, ModelKind.TEXT),
        ({"architectures": [None, 3]}, ModelKind.TEXT),
        ({"vision_config": {"depth": 2}}, ModelKind.VISION),
        ({"vision_config": None}, ModelKind.TEXT),
        ({"architectures": ["BertModel"]}, ModelKind.EMBEDDING),
        ({"architectures": ["Qwen3Model"]}, ModelKind.EMBEDDING),
        ({"architectures": ["BertForMaskedLM"], "model_type": "bert"}, ModelKind.EMBEDDING),
        ({"architectures": ["XLMRobertaForSequenceClassification"]}, ModelKind.EMBEDDING),
        ({"architectures": ["Qwen3ForSequenceClassification"]}, ModelKind.EMBEDDING),
        ({"model_type": ["llama"]}, ModelKind.TEXT),
    ],
)
def test_the_kind_follows_from_the_config(tmp_path: Path, config: dict, kind: ModelKind):
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert folder_kind(tmp_path).kind is kind


def test_a_sentence_transformers_folder_is_an_embedding_model(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["Qwen3ForCausalLM"]}))
    assert folder_kind(tmp_path).kind is ModelKind.TEXT
    (tmp_path / "modules.json").write_text("[]")
    assert folder_kind(tmp_path).kind is ModelKind.EMBEDDING


@pytest.mark.parametrize(
    ("model_type", "served"),
    [("llama", True), ("qwen3", True), ("mistral", True), ("lfm2-vl", True), ("whisper", False)]
    + [(odd, False) for odd in ("", "../llama", "llama.py", "llama\0", None, 3, [], {})],
)
def test_a_type_is_served_when_mlx_lm_has_or_renames_it(model_type: object, served: bool):
    package = {"mlx_lm": installed_packages()["mlx_lm"]}
    assert Architectures(package).supports(model_type) is served


def test_encoders_are_served_without_any_package():
    served = {
        name
        for name in ("bert", "roberta", "xlm-roberta", "camembert", "mpnet", "llama")
        if Architectures({}).supports(name)
    }
    assert served == {"bert", "roberta", "xlm-roberta", "camembert"}


def test_the_encoders_that_discovery_lists_are_those_that_the_loader_knows():
    from mlxd.engines.encoder_bert import BERT_TYPES, ROBERTA_TYPES

    assert set(BERT_TYPES + ROBERTA_TYPES) == _SERVED_ENCODERS


def test_without_mlx_lm_no_text_model_is_served(tmp_path: Path):
    assert not Architectures({}).supports("llama")
    assert not Architectures({"mlx_lm": tmp_path}).supports("mistral")
