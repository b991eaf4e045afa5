"""Tiny float32 model folders for mlx-lm, made in seconds without importing MLX.

`build_tiny_model` gives random weights that never end on their own; `build_reciting_model` gives a model
that answers every prompt with exactly the pieces it was built from.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] or '' }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# From a template and a vocabulary like these mlx-lm knows a model that reasons and calls tools in JSON.
TOOL_TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] or '' }}"
    "{% for tool_call in m['tool_calls'] or [] %}{% set tool_call = tool_call.function %}"
    '<tool_call>{"name": "{{ tool_call.name }}", "arguments": {{ tool_call.arguments | tojson }}}</tool_call>'
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking %}<think>\n{% endif %}{% endif %}"
)
ANSWER_MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
BOS, EOS = 0, 2

# micro is all overhead and stands for a fast accelerator's step time; tiny (11 MB) is for correctness;
# mid (about 300 MB) is for memory behaviour
_SHAPE = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size")
SIZES: dict[str, dict[str, int]] = {
    "micro": dict(zip(_SHAPE, (64, 1, 2, 1, 32, 512), strict=True)),
    "tiny": dict(zip(_SHAPE, (256, 4, 4, 2, 64, 2048), strict=True)),
    "mid": dict(zip(_SHAPE, (1024, 8, 8, 4, 128, 2048), strict=True)),
}

Weights = dict[str, np.ndarray]


def cache_dir() -> Path:
    """The ignored folder for built models; it changes with this file and the Python version."""
    source = hashlib.sha256(Path(__file__).read_bytes() + sys.version.encode()).hexdigest()[:12]
    return Path(__file__).resolve().parent.parent / ".cache" / "tiny_models" / source


def cached(name: str, build: Callable[[Path], Path]) -> Path:
    """The built folder of that name in the cache, built now if it is not there."""
    out = cache_dir() / name
    return out if out.exists() else build(out)


@contextlib.contextmanager
def atomic_folder(out: Path) -> Iterator[Path]:
    """A temporary folder that becomes `out` at the end; when another process was faster, its `out` stays."""
    if out.exists():
        raise FileExistsError(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".tmp-{out.name}-", dir=out.parent))
    try:
        yield partial
        partial.chmod(0o755)
        try:
            partial.rename(out)
        except OSError:
            if not out.is_dir():
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def build_tiny_model(
    out: Path,
    size: str = "tiny",
    kind: str = "llama",
    seed: int = 0,
    *,
    template: str = CHAT_TEMPLATE,
    final_norm: float = 1.0,
    cache: Path | None = None,
    **config_overrides: Any,
) -> Path:
    """Write a random model; `kind` is "llama", "qwen2" or "qwen3", other keywords go to config.json and shape the
    weights.

    A `final_norm` well below 1 makes logits nearly equal, so that sampling parameters show.
    Raises FileExistsError when `out` is there.
    """
    config = _config(kind, {**SIZES[size], **config_overrides})
    with atomic_folder(out) as folder:
        tokenizer = _trained_tokenizer(config["vocab_size"], cache or cache_dir())
        weights = _random_weights(config, np.random.default_rng(seed))
        weights["model.norm.weight"] *= np.float32(final_norm)
        _write(folder, config, weights, tokenizer, template)
    return out


def build_reciting_model(
    out: Path,
    pieces: Sequence[str | bytes],
    *,
    loop: bool = False,
    template: str = CHAT_TEMPLATE,
    added: Sequence[str] = (),
    cache: Path | None = None,
    **config_overrides: Any,
) -> Path:
    """Write a model that answers any prompt with `pieces`, one token each, then ends (with `loop`: starts again).

    A piece of bytes may be part of a UTF-8 character; equal pieces are different tokens. Attention and MLP add
    nothing, so the next token depends on the last one alone: every ordinary token leads to the first piece.
    It holds at every sane temperature. `added` texts are one token each wherever they stand in a prompt.
    Raises FileExistsError when `out` is there.
    """
    hidden = -(-(len(pieces) + 1) // 64) * 64
    base = _trained_tokenizer(SIZES["micro"]["vocab_size"], cache or cache_dir())
    tokenizer = _reciting_tokenizer(base, pieces, added)
    shape = {**SIZES["micro"], "hidden_size": hidden, "vocab_size": tokenizer.get_vocab_size()}
    config = _config("llama", {**shape, "tie_word_embeddings": False, **config_overrides})
    weights = _random_weights(config, np.random.default_rng(0))
    for name in weights:
        if "o_proj" in name or "down_proj" in name:
            weights[name][:] = 0
    tokens = list(range(len(SPECIAL_TOKENS), len(SPECIAL_TOKENS) + len(pieces)))
    successors = [*tokens, tokens[0] if loop and tokens else EOS]
    embed, head = weights["model.embed_tokens.weight"], weights["lm_head.weight"]
    embed[:], head[:] = 0, 0
    embed[:, 0] = 1
    for state, token in enumerate(tokens, start=1):
        embed[token] = np.eye(hidden, dtype=np.float32)[state]
    for state, token in enumerate(successors):
        head[token, state] += 64 / hidden**0.5
    with atomic_folder(out) as folder:
        _write(folder, config, weights, tokenizer, template)
    return out


def place_models(folder: Path, models_by_name: Mapping[str, Path]) -> Path:
    """Copy model folders into `folder` as `name` or `org/name`, so that a test may change and delete them."""
    for name, source in models_by_name.items():
        shutil.copytree(source, folder / name)
    return folder


def _config(kind: str, values: dict[str, Any]) -> dict[str, Any]:
    architectures = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
    if kind not in architectures:
        raise ValueError(f"kind {kind!r} is none of {', '.join(architectures)}")
    return {
        "model_type": kind,
        "architectures": [architectures[kind]],
        "intermediate_size": 2 * values["hidden_size"],
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": True,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "torch_dtype": "float32",
        **values,
    }


def _random_weights(config: dict[str, Any], rng: np.random.Generator) -> Weights:
    hidden, inner, vocab = (config[k] for k in ("hidden_size", "intermediate_size", "vocab_size"))
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]

    def linear(rows: int, columns: int) -> np.ndarray:
        # four times the usual width: sharper logits, fewer near ties
        return (rng.random((rows, columns), dtype=np.float32) * 2 - 1) * np.float32(4 * columns**-0.5)

    weights = {"model.norm.weight": np.ones(hidden, np.float32)}
    weights["model.embed_tokens.weight"] = rng.standard_normal((vocab, hidden), np.float32) * np.float32(
        4 * hidden**-0.5
    )
    # a token whose logit is always 0 is never the best one: random models do not end on their own
    weights["model.embed_tokens.weight"][EOS] = 0
    if not config["tie_word_embeddings"]:
        weights["lm_head.weight"] = linear(vocab, hidden)
        weights["lm_head.weight"][EOS] = 0
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        for name, rows, columns in (
            ("self_attn.q_proj", queries, hidden),
            ("self_attn.k_proj", keys, hidden),
            ("self_attn.v_proj", keys, hidden),
            ("self_attn.o_proj", hidden, queries),
            ("mlp.gate_proj", inner, hidden),
            ("mlp.up_proj", inner, hidden),
            ("mlp.down_proj", hidden, inner),
        ):
            weights[f"{at}{name}.weight"] = linear(rows, columns)
            if config["model_type"] == "qwen2" and name[-6] in "qkv":
                weights[f"{at}{name}.bias"] = linear(1, rows)[0]
        norms = [("input_layernorm", hidden), ("post_attention_layernorm", hidden)]
        if config["model_type"] == "qwen3":
            norms += [("self_attn.q_norm", config["head_dim"]), ("self_attn.k_norm", config["head_dim"])]
        for name, length in norms:
            weights[f"{at}{name}.weight"] = np.ones(length, np.float32)
    return weights


def _trained_tokenizer(vocab_size: int, cache: Path) -> Tokenizer:
    file = cache / f"tokenizer-{vocab_size}.json"
    if file.exists():
        return Tokenizer.from_file(str(file))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    corpus = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:60]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train([str(path) for path in corpus], trainer)
    cache.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(dir=cache)
    os.close(handle)
    tokenizer.save(partial)
    Path(partial).replace(file)
    return tokenizer


def _reciting_tokenizer(base: Tokenizer, pieces: Sequence[str | bytes], added: Sequence[str]) -> Tokenizer:
    # Only Unigram allows equal tokens with different ids. Encoding takes the last of them, so the base vocabulary
    # comes after the pieces, and pieces that are not in it are too costly to be used for a prompt.
    letters = _byte_letters()
    texts = ["".join(letters[b] for b in (p if isinstance(p, bytes) else p.encode())) for p in pieces]
    if unusable := {"", *SPECIAL_TOKENS}.intersection(texts):
        raise ValueError(f"not usable as pieces: {sorted(unusable)}")
    words = sorted(base.get_vocab().items(), key=lambda item: item[1])[len(SPECIAL_TOKENS) :]
    vocab = [(token, 0.0) for token in SPECIAL_TOKENS] + [(text, -1e6) for text in texts]
    tokenizer = Tokenizer(
        models.Unigram([*vocab, *((word, -1.0) for word, _ in words)], unk_id=BOS, byte_fallback=False)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in added])
    return tokenizer


def _byte_letters() -> dict[int, str]:
    """The printable letter that stands for each byte in a byte-level vocabulary."""
    own = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [b for b in range(256) if b not in own]
    return {**{b: chr(b) for b in own}, **{b: chr(256 + i) for i, b in enumerate(others)}}


def _write(folder: Path, config: dict[str, Any], weights: Weights, tokenizer: Tokenizer, template: str) -> None:
    save_file(weights, folder / "model.safetensors", metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL_TOKENS[BOS],
        "eos_token": SPECIAL_TOKENS[EOS],
        "pad_token": SPECIAL_TOKENS[BOS],
        "unk_token": SPECIAL_TOKENS[BOS],
        "clean_up_tokenization_spaces": False,
        "model_max_length": config["max_position_embeddings"],
        "chat_template": template,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))
