"""Tiny float32 vision model folders for mlx-vlm, with random weights, each family with its own processor and template.

MLX and mlx-vlm are imported only to learn the names and shapes of the weights; nothing is computed by them.
"""

from __future__ import annotations

import copy
import hashlib
import io
import json
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tiny_models import SPECIAL_TOKENS, Weights, _trained_tokenizer, atomic_folder, cache_dir, cached
from tiny_vision_families import FAMILIES
from tiny_vision_family import PAD, Family
from tokenizers import AddedToken, Tokenizer

# With these mlx-vlm's `prepare_inputs` fails on every image: it has the image processor pad, which takes no such
# setting. Text works, and so do images given to the processor itself.
UNPREPARED = ("llava",)
ARCHITECTURES = tuple(name for name in FAMILIES if name not in UNPREPARED)
# mlx-vlm refuses a second image for these.
SINGLE_IMAGE = ("paligemma", "mllama")
# A family's own tokens come after these.
ORDINARY_TOKENS = 2000
# Four times the usual width of weights: sharper logits, fewer near ties.
WIDTH = 4.0

COLOURS = {
    "red": (220, 30, 30),
    "green": (30, 180, 60),
    "blue": (20, 40, 200),
    "white": (255, 255, 255),
    "black": (0, 0, 0),
}


def png(pattern: str, size: tuple[int, int] = (100, 80)) -> bytes:
    """A PNG file of that (width, height) in pixels: a plain colour of `COLOURS`, "stripes", "gradient", or noise.

    Any other name gives noise of its own, so that every name is another image.
    """
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(_pixels(pattern, *size)).save(buffer, "PNG")
    return buffer.getvalue()


def _pixels(pattern: str, width: int, height: int) -> np.ndarray:
    """Array (height, width, 3) of bytes."""
    if pattern in COLOURS:
        return np.tile(np.array(COLOURS[pattern], np.uint8), (height, width, 1))
    rows, columns = np.mgrid[:height, :width]
    if pattern == "stripes":
        grey = (columns // 8 % 2 * 255).astype(np.uint8)
        return np.stack([grey] * 3, axis=-1)
    if pattern == "gradient":
        channels = (rows * 255 // height, columns * 255 // width, (rows + columns) % 256)
        return np.stack(channels, axis=-1).astype(np.uint8)
    seed = int.from_bytes(hashlib.sha256(pattern.encode()).digest()[:8])
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def tiny_vision_model(architecture: str, seed: int = 0, **overrides: Any) -> Path:
    """The folder of such a model in the cache, built now if it is not there; not to be changed."""
    sources = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("tiny_vision*.py")))
    settings = json.dumps([version("mlx-vlm"), seed, overrides], sort_keys=True)
    key = hashlib.sha256(sources + settings.encode()).hexdigest()[:12]
    return cached(f"{architecture}-{key}", lambda out: build_tiny_vision_model(out, architecture, seed, **overrides))


def build_tiny_vision_model(
    out: Path, architecture: str, seed: int = 0, *, template: str | None = None, **overrides: Any
) -> Path:
    """Write a random model of one of `ARCHITECTURES` or `UNPREPARED`; its greedy answer never ends.

    Other keywords go to config.json and shape the weights; a mapping changes only the keys that it names.
    Raises ValueError for another architecture, FileExistsError when `out` is there.
    """
    if architecture not in FAMILIES:
        raise ValueError(f"architecture {architecture!r} is not one of {', '.join(FAMILIES)}")
    family = FAMILIES[architecture]
    tokenizer = _tokenizer(family)
    config = _config(family, tokenizer, overrides)
    with atomic_folder(out) as folder:
        weights = _weights(config, family.embedding_width, seed)
        save_file(weights, folder / "model.safetensors", metadata={"format": "mlx"})
        tokenizer.save(str(folder / "tokenizer.json"))
        (folder / "chat_template.jinja").write_text(template or family.template)
        settings = _tokenizer_settings(family)
        files = {"config": config, "tokenizer_config": settings, "preprocessor_config": family.preprocessor}
        if family.processor:
            files["processor_config"] = family.processor
        for name, content in files.items():
            (folder / f"{name}.json").write_text(json.dumps(content, indent=1))
    return out


def _tokenizer(family: Family) -> Tokenizer:
    tokenizer = _trained_tokenizer(ORDINARY_TOKENS, cache_dir())
    own = (family.bos, family.eos, *family.named.values(), *family.tokens)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in own])
    return tokenizer


def _tokenizer_settings(family: Family) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": family.bos,
        "eos_token": family.eos,
        "pad_token": PAD,
        "unk_token": PAD,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 8192,
        "extra_special_tokens": {f"{name}_token": token for name, token in family.named.items()},
    }


def _config(family: Family, tokenizer: Tokenizer, overrides: Mapping[str, Any]) -> dict[str, Any]:
    config = _with_ids(family.config, tokenizer.token_to_id)
    size = tokenizer.get_vocab_size()
    config |= {"vocab_size": size, "torch_dtype": "float32"}
    # the second is the table that Gemma 4 has for each layer; others read no such key
    for part in {"text_config", "llm_config"} & config.keys():
        config[part] |= {"vocab_size": size, "vocab_size_per_layer_input": size}
    return _merged(config, overrides)


def _with_ids(config: Mapping[str, Any], id_of: Callable[[str], int | None]) -> dict[str, Any]:
    """A copy of a configuration with ids in the place of tokens."""
    result: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            result[key] = _with_ids(value, id_of)
        elif isinstance(value, str) and key.endswith(("_token_id", "_token_index")):
            result[key] = id_of(value)
        else:
            result[key] = copy.deepcopy(value)
    return result


def _merged(config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(config)
    for key, value in changes.items():
        inner = result.get(key)
        result[key] = _merged(inner, value) if isinstance(inner, dict) and isinstance(value, Mapping) else value
    return result


def _weights(config: Mapping[str, Any], embedding_width: float, seed: int) -> Weights:
    rng = np.random.default_rng(seed)
    weights = {name: _random(name, shape, rng) for name, shape in sorted(_shapes(config).items())}
    for name, weight in weights.items():
        if name.endswith("embed_tokens.weight"):
            np.multiply(weight, np.float32(embedding_width / WIDTH), out=weight)
        # A token whose logit is always 0 is never the best one: no end and no image in an answer.
        if name.endswith(("embed_tokens.weight", "lm_head.weight")):
            weight[ORDINARY_TOKENS:] = 0
            weight[: len(SPECIAL_TOKENS)] = 0
    return weights


def _shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The names and shapes of the model's weights, as mlx-vlm makes them before it loads any."""
    from mlx.utils import tree_flatten
    from mlx_vlm.utils import get_model_and_args, update_module_configs

    values = copy.deepcopy(dict(config))
    values.setdefault("text_config", values.pop("llm_config", {}))
    module, _ = get_model_and_args(values)
    parts = ["text", "vision", "perceiver", "projector", "audio"]
    model_config = update_module_configs(module.ModelConfig.from_dict(values), module, values, parts)
    return {name: tuple(array.shape) for name, array in tree_flatten(module.Model(model_config).parameters())}


def _random(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    if name.endswith("A_log"):
        # The state of linear attention fades slowly enough to tell the start of a prompt at its end.
        return np.full(shape, -4, np.float32)
    if len(shape) == 1 and name.endswith("weight"):
        return np.ones(shape, np.float32)
    inputs = int(np.prod(shape[1:])) if len(shape) > 1 else 16
    if "switch_mlp" in name:
        # one matrix for each expert
        inputs = shape[-1]
    return (rng.random(shape, np.float32) * 2 - 1) * np.float32(WIDTH * inputs**-0.5)
