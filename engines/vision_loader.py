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
_OTHER_MEDIA = ("video_token_id", "video_token_index", "audio_token_id", "audio_token_index")
_PARTS = ("config", "language_model", "get_input_embeddings")
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
    model, family = _built(config.path, description)
    mx.eval(mx.random.state)
    total = evaluate_all([model], config.path, watch.progress, watch.cancelled)
    batched = is_batched(model, family)
    processor = _processor(config.path, model.config)
    wrapper = _wrapper(config.path, processor)
    image_token = _image_token(model.config, wrapper, config.path)
    media = [token for name in _OTHER_MEDIA if (token := _positive(description.get(name))) not in (0, image_token)]
    prepares = VisionProcessor(processor, family, image_token, watch, batched=batched, other_media=media)
    tokenizer = VisionTokenizer(wrapper, prepares)
    language = VisionLanguage(model) if batched else model.language_model
    info = ModelInfo(_vocab_size(model, description, config.path), total)
    encoder = ImageEncoder(model, image_token, lane, _price(description, model.config, config))
    return LoadedVision(LoadedText(language, lambda: tokenizer, info), model, encoder, tokenizer, family, batched)


def _check(config: EngineConfig) -> None:
    for value, key in ((config.adapter, "adapters"), (config.draft, "engine.draft")):
        if value is not None:
            message = f"{config.path.name}: {key} is not supported for models that take images; leave it out"
            raise LoadError(LoadFailure.UNSUPPORTED, message)


def _built(path: Path, description: dict[str, Any]) -> tuple[Any, str]:
    """mlx-vlm's model, whose weights are not read yet, and its architecture."""
    try:
        _, family = get_model_and_args(description)
        model = load_vision(path, lazy=True, trust_remote_code=False)
    # whatever mlx-vlm makes of odd files, it is the files that are wrong
    except Exception as error:
        unknown = isinstance(error, ImportError) or (isinstance(error, ValueError) and "not supported" in str(error))
        reason = LoadFailure.UNSUPPORTED if unknown else LoadFailure.BAD_FILES
        raise LoadError(reason, f"{path.name}: {describe(error)}") from error
    if not all(hasattr(model, name) for name in _PARTS) or not hasattr(model.config, "text_config"):
        message = f"{path.name}: mlx-vlm's {family} is no model that answers in text about images"
        raise LoadError(LoadFailure.UNSUPPORTED, message)
    return model, family


def _wrapper(path: Path, processor: Any) -> Any:
    """mlx-lm's tokenizer, which ends answers where mlx-vlm does: at what generation_config.json and the processor say,
    too.
    """
    criteria = getattr(getattr(processor, "tokenizer", processor), "stopping_criteria", None)
    ends = [token for token in getattr(criteria, "eos_token_ids", ()) if isinstance(token, int)]
    return read_tokenizer(path, {"eos_token_id": ends or None}, **_template(path))


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
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise LoadError(LoadFailure.BAD_FILES, f"{path.name}: {file.name}: {describe(error)}") from error


def _image_token(config: Any, tokenizer: Any, path: Path) -> int:
    token = next((token for name in _IMAGE_TOKENS if isinstance(token := getattr(config, name, None), int)), None)
    if token is None:
        message = f"{path.name}: config.json does not tell which token stands for an image"
        raise LoadError(LoadFailure.UNSUPPORTED, message)
    if token < 0 or tokenizer.convert_ids_to_tokens(token) is None:
        message = f"{path.name}: by config.json {token} stands for an image, but the tokenizer has no such token"
        raise LoadError(LoadFailure.UNSUPPORTED, message)
    return token


def _vocab_size(model: Any, description: dict[str, Any], path: Path) -> int:
    """How many logits the language model has; what config.json says beside its text_config may be another number."""
    told = getattr(model.config.text_config, "vocab_size", None), description.get("vocab_size")
    size = next(filter(None, map(_positive, told)), None)
    if size is None:
        raise LoadError(LoadFailure.BAD_FILES, f"{path.name}: config.json does not tell the size of the vocabulary")
    return size


def _price(description: dict[str, Any], model_config: Any, config: EngineConfig) -> ImagePrice:
    vision = description.get("vision_config")
    vision = vision if isinstance(vision, dict) else {}
    heads = next((count for name in _HEADS if (count := _positive(vision.get(name)))), 0)
    hidden = _positive(getattr(model_config.text_config, "hidden_size", None))
    patch = _positive(vision.get("patch_size")) or ASSUMED_PATCH
    return ImagePrice(patch, hidden * config.itemsize, Transients(Shape(heads, config.itemsize)))


def _positive(value: object) -> int:
    """A count as it is told, 0 for anything else: of what models tell, only some is what it should be."""
    return value if isinstance(value, int) and value > 0 else 0
