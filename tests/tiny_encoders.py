"""Tiny random encoders in float32 with a real tokenizer, made without importing MLX, and the sentence-transformers
files that say what becomes of their states.
"""

from __future__ import annotations

import json
import os
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file
from tiny_models import atomic_folder, cache_dir
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

VOCAB = 600
SPECIAL = {
    "bert": ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    "xlm-roberta": ("<s>", "<pad>", "</s>", "<unk>", "<mask>"),
}
MEAN_UNIT = ({"pooling_mode_mean_tokens": True}, True)

Weights = dict[str, np.ndarray]


def build_encoder(
    out: Path,
    kind: str = "bert",
    *,
    scores: bool = False,
    pooling: Mapping[str, Any] | None = None,
    unit: bool = True,
    dense: Sequence[tuple[int, str]] = (),
    max_seq_length: int | None = None,
    prompts: Mapping[str, str] | None = None,
    default_prompt: str | None = None,
    seed: int = 0,
    prefix: str = "",
    **overrides: Any,
) -> Path:
    """Write a random encoder, `kind` "bert" or "xlm-roberta"; with `scores` a cross-encoder of one label.

    `pooling` is the pooling module's config, mean if it is not given; `dense` are layers behind it by outputs and
    activation. Other keywords go to config.json and shape the weights.
    """
    config = _config(kind, scores=scores, overrides=overrides)
    rng = np.random.default_rng(seed)
    with atomic_folder(out) as folder:
        weights = {prefix + name: array for name, array in _weights(config, rng, scores=scores).items()}
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        _write(folder / "config.json", config)
        _write_tokenizer(folder, kind)
        if not scores:
            _write_modules(folder, config, dict(pooling or MEAN_UNIT[0]), dense, unit=unit, rng=rng)
        if max_seq_length is not None:
            _write(folder / "sentence_bert_config.json", {"max_seq_length": max_seq_length, "do_lower_case": False})
        if prompts is not None:
            known = {"prompts": dict(prompts), "default_prompt_name": default_prompt}
            _write(folder / "config_sentence_transformers.json", known)
    return out


def add_modules(folder: Path, pooling: Mapping[str, Any], *, unit: bool = True) -> None:
    """Make the folder of a decoder one of an embedding model."""
    config = json.loads((folder / "config.json").read_text())
    _write_modules(folder, config, dict(pooling), (), unit=unit, rng=np.random.default_rng(0))


def change_config(folder: Path, file: str = "config.json", **values: Any) -> None:
    """Change keys of a JSON file; None takes one out."""
    config = {**json.loads((folder / file).read_text()), **values}
    _write(folder / file, {key: value for key, value in config.items() if value is not None})


def rename_weights(folder: Path, rename: Any) -> None:
    """Give each tensor the name that `rename` makes of its own; None takes it out."""
    weights = load_file(folder / "model.safetensors")
    renamed = {rename(name): array for name, array in weights.items()}
    save_file({name: array for name, array in renamed.items() if name is not None}, folder / "model.safetensors")


def _config(kind: str, *, scores: bool, overrides: dict[str, Any]) -> dict[str, Any]:
    family = {"bert": "Bert", "xlm-roberta": "XLMRoberta"}[kind]
    roberta = kind == "xlm-roberta"
    head = {"id2label": {"0": "LABEL_0"}} if scores else {}
    return {
        "model_type": kind,
        "architectures": [f"{family}ForSequenceClassification" if scores else f"{family}Model"],
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "max_position_embeddings": 130 if roberta else 128,
        "vocab_size": VOCAB,
        "type_vocab_size": 1 if roberta else 2,
        "layer_norm_eps": 1e-5 if roberta else 1e-12,
        "hidden_act": "gelu",
        "pad_token_id": 1 if roberta else 0,
        **head,
        **overrides,
    }


def _weights(config: dict[str, Any], rng: np.random.Generator, *, scores: bool) -> Weights:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    weights: Weights = {}

    def linear(name: str, outputs: int, inputs: int) -> None:
        weights[f"{name}.weight"] = rng.standard_normal((outputs, inputs), np.float32) * np.float32(2 * inputs**-0.5)
        weights[f"{name}.bias"] = rng.standard_normal(outputs, np.float32) * np.float32(0.1)

    def norm(name: str) -> None:
        weights[f"{name}.weight"] = 1 + rng.standard_normal(hidden, np.float32) * np.float32(0.1)
        weights[f"{name}.bias"] = rng.standard_normal(hidden, np.float32) * np.float32(0.1)

    for name, rows in (
        ("word_embeddings", config["vocab_size"]),
        ("position_embeddings", config["max_position_embeddings"]),
        ("token_type_embeddings", config["type_vocab_size"]),
    ):
        weights[f"embeddings.{name}.weight"] = rng.standard_normal((rows, hidden), np.float32)
    norm("embeddings.LayerNorm")
    for layer in range(config["num_hidden_layers"]):
        at = f"encoder.layer.{layer}."
        for part in ("query", "key", "value"):
            linear(f"{at}attention.self.{part}", hidden, hidden)
        linear(f"{at}attention.output.dense", hidden, hidden)
        norm(f"{at}attention.output.LayerNorm")
        linear(f"{at}intermediate.dense", inner, hidden)
        linear(f"{at}output.dense", hidden, inner)
        norm(f"{at}output.LayerNorm")
    if not scores or config["model_type"] == "bert":
        linear("pooler.dense", hidden, hidden)
    if scores and config["model_type"] == "bert":
        linear("classifier", 1, hidden)
    elif scores:
        linear("classifier.dense", hidden, hidden)
        linear("classifier.out_proj", 1, hidden)
    return weights


def _write_modules(
    folder: Path,
    config: dict[str, Any],
    pooling: dict[str, Any],
    dense: Sequence[tuple[int, str]],
    *,
    unit: bool,
    rng: np.random.Generator,
) -> None:
    listed = [("", "Transformer"), ("1_Pooling", "Pooling")]
    size = config["hidden_size"]
    (folder / "1_Pooling").mkdir()
    _write(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": size, **pooling})
    for number, (outputs, activation) in enumerate(dense, start=2):
        place = folder / f"{number}_Dense"
        place.mkdir()
        named = f"torch.nn.modules.activation.{activation}"
        _write(
            place / "config.json",
            {"in_features": size, "out_features": outputs, "bias": True, "activation_function": named},
        )
        weight = rng.standard_normal((outputs, size), np.float32) * np.float32(size**-0.5)
        save_file(
            {"linear.weight": weight, "linear.bias": np.full(outputs, 0.1, np.float32)}, place / "model.safetensors"
        )
        listed.append((place.name, "Dense"))
        size = outputs
    if unit:
        listed.append((f"{len(listed)}_Normalize", "Normalize"))
    modules = [
        {"idx": idx, "name": str(idx), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for idx, (path, kind) in enumerate(listed)
    ]
    _write(folder / "modules.json", modules)


def _write_tokenizer(folder: Path, kind: str) -> None:
    _tokenizer(kind).save(str(folder / "tokenizer.json"))
    special = SPECIAL[kind]
    start, end, pad, unknown = (
        (special[2], special[3], special[0], special[1])
        if kind == "bert"
        else special[:1] + special[2:3] + special[1:2] + special[3:4]
    )
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "cls_token": start,
        "sep_token": end,
        "pad_token": pad,
        "unk_token": unknown,
        "model_max_length": 128,
    }
    _write(folder / "tokenizer_config.json", settings)


def _tokenizer(kind: str) -> Tokenizer:
    """WordPiece, trained once; saved with padding and truncation, as some folders have them."""
    file = cache_dir() / f"wordpiece-{kind}.json"
    if file.exists():
        return Tokenizer.from_file(str(file))
    special = SPECIAL[kind]
    unknown = "[UNK]" if kind == "bert" else "<unk>"
    tokenizer = Tokenizer(models.WordPiece(unk_token=unknown))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    corpus = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:20]
    trainer = trainers.WordPieceTrainer(vocab_size=VOCAB, special_tokens=list(special), show_progress=False)
    tokenizer.train([str(path) for path in corpus], trainer)
    tokenizer.post_processor = (
        processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
        if kind == "bert"
        else processors.TemplateProcessing(
            single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
        )
    )
    tokenizer.enable_truncation(16)
    tokenizer.enable_padding(length=16)
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(dir=file.parent)
    os.close(handle)
    tokenizer.save(partial)
    Path(partial).replace(file)
    return tokenizer


def _write(file: Path, value: Any) -> None:
    file.write_text(json.dumps(value, indent=1))
