"""Loads a vision model of mlx-vlm piece by piece. The vision extra is imported with this module."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_vlm.utils import get_model_and_args, load_image_processor, load_processor
from mlx_vlm.utils import load_model as load_vision
from transformers.utils.logging import set_verbosity_error

from mlxd.engines.errors import LoadError, LoadFailure
from mlxd.engines.image_price import ASSUMED_PATCH, ImagePrice
from mlxd.engines.load_watch import LoadWatch
from mlxd.engines.loader import NO_CODE, LoadedText, check_config, describe, evaluate_all, read_tokenizer
from mlxd.engines.transients import Shape, Transients
from mlxd.engines.types import EngineConfig, ModelInfo
from mlxd.engines.vision_encoder import EncoderWatch, ImageEncoder
from mlxd.engines.vision_model import VisionLanguage, is_batched
from mlxd.engines.vision_processor import VisionProcessor
from mlxd.engines.vision_tokenizer import VisionTokenizer

# It would tell of each call of a processor that it does not know all of its arguments.
set_verbosity_error()  # type: ignore[no-untyped-call]

_IMAGE_TOKENS = ("image_token_id", "image_token_index")
_HEADS = ("num_attention_heads", "num_heads", "heads")


@dataclass(frozen=True, slots=True, eq=False)
class LoadedVision:
    """A vision model with its weights evaluated. `text` is what a text runner takes, `model` all of mlx-vlm's, of
    the architecture `family`.
    """

    text: LoadedText
    model: Any
    encoder: ImageEncoder
    tokenizer: VisionTokenizer
    family: str
    batched: bool


def load_vision_model(config: EngineConfig, watch: LoadWatch, lane: EncoderWatch) -> LoadedVision:
    """Load and evaluate a model and its processor. Raises LoadError with the reason."""
    _check(config)
    description = check_config(config.path)
    _, family = get_model_and_args(description)
    model = _built(config.path)
    mx.eval(mx.random.state)
    total = evaluate_all([model], config.path, watch.progress, watch.cancelled)
    batched = is_batched(model, family)
    image_token = _image_token(model.config, config.path)
    processor = _processor(config.path, model.config)
    wrapper = read_tokenizer(config.path, description, **_template(config.path))
    prepares = VisionProcessor(processor, family, image_token, watch, batched=batched)
    tokenizer = VisionTokenizer(wrapper, prepares)
    language = VisionLanguage(model) if batched else model.language_model
    info = ModelInfo(_vocab_size(description, model), total, vision=True)
    encoder = ImageEncoder(model, image_token, lane, _price(description, model.config, config))
    return LoadedVision(LoadedText(language, tokenizer, info), model, encoder, tokenizer, family, batched)


def _check(config: EngineConfig) -> None:
    for value, key in ((config.adapter, "adapters"), (config.draft, "engine.draft")):
        if value is not None:
            message = f"{config.path.name}: {key} is not supported for models that take images; leave it out"
            raise LoadError(LoadFailure.UNSUPPORTED, message)


def _built(path: Path) -> Any:
    try:
        return load_vision(path, lazy=True, trust_remote_code=False)
    except ValueError as error:
        reason = LoadFailure.UNSUPPORTED if "not supported" in str(error) else LoadFailure.BAD_FILES
        raise LoadError(reason, f"{path.name}: {describe(error)}") from error
    # whatever mlx-vlm makes of odd files, it is the files that are wrong
    except Exception as error:
        raise LoadError(LoadFailure.BAD_FILES, f"{path.name}: {describe(error)}") from error


def _processor(path: Path, config: Any) -> Any:
    try:
        processor = load_processor(path, eos_token_ids=getattr(config, "eos_token_id", None), **NO_CODE)
        images = load_image_processor(path, **NO_CODE)
    # transformers raises whatever its parsers do; all of it means that the files are not usable
    except Exception as error:
        raise LoadError(LoadFailure.BAD_FILES, f"{path.name}: image processor: {describe(error)}") from error
    if images is not None:
        processor.image_processor = images
    return processor


def _template(path: Path) -> dict[str, str]:
    """The chat template of folders that have it in a file of the processor's only."""
    file = path / "chat_template.json"
    if not file.is_file() or (path / "chat_template.jinja").is_file():
        return {}
    try:
        return {"chat_template": str(json.loads(file.read_bytes())["chat_template"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LoadError(LoadFailure.BAD_FILES, f"{path.name}: {file.name}: {describe(error)}") from error


def _image_token(config: Any, path: Path) -> int:
    for name in _IMAGE_TOKENS:
        token = getattr(config, name, None)
        if isinstance(token, int):
            return token
    raise LoadError(LoadFailure.UNSUPPORTED, f"{path.name}: config.json does not tell which token stands for an image")


def _vocab_size(description: dict[str, Any], model: Any) -> int:
    text = description.get("text_config")
    told = description.get("vocab_size") or (text.get("vocab_size") if isinstance(text, dict) else None)
    return int(told or model.config.text_config.vocab_size)


def _price(description: dict[str, Any], model_config: Any, config: EngineConfig) -> ImagePrice:
    vision = description.get("vision_config")
    vision = vision if isinstance(vision, dict) else {}
    heads = next((vision[name] for name in _HEADS if isinstance(vision.get(name), int)), 0)
    patch = vision.get("patch_size")
    text = model_config.text_config
    return ImagePrice(
        patch if isinstance(patch, int) and patch > 0 else ASSUMED_PATCH,
        int(getattr(text, "hidden_size", 0) or 0) * config.itemsize,
        Transients(Shape(heads, config.itemsize)),
    )
