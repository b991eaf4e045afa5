"""What a model will need before it is loaded. Nothing here imports MLX."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from mlxd.memory.attention import key_value_shape
from mlxd.memory.files import BadFile, MissingFile
from mlxd.memory.model_config import Config, context_length, read_config, sentence_length
from mlxd.memory.weights import Tensor, float_itemsize, read_tensors, total_bytes

# the batch cache grows by this many tokens
CACHE_STEP = 256


@dataclass(frozen=True, slots=True)
class SlidingLayers:
    """The part of a model's bytes per token that stops growing after `window` tokens."""

    bytes_per_token: int
    window: int


@dataclass(frozen=True, slots=True)
class ModelEstimate:
    """A model folder in numbers; bytes and tokens, 0 means unknown.

    `kv_bytes_per_token` counts full and sliding layers: an upper bound, of which `sliding` is the part that is
    capped. `problem` is a sentence that says why the folder cannot be loaded, `note` one that says what is unknown.
    """

    weight_bytes: int = 0
    kv_bytes_per_token: int = 0
    context_length: int = 0
    problem: str | None = None
    attention_heads: int = 0
    itemsize: int = 2
    sliding: SlidingLayers | None = None
    note: str | None = None


def inspect_folder(path: Path) -> ModelEstimate:
    """Read config.json and the safetensors headers. Never raises for what the folder holds: that is a problem."""
    problems: list[str] = []
    config: Config = {}
    tensors: dict[str, Tensor] = {}
    try:
        config = read_config(path)
    except MissingFile:
        problems.append("no config.json")
    except BadFile as error:
        problems.append(str(error))
    try:
        tensors = read_tensors(path)
    except BadFile as error:
        problems.append(str(error))
    estimate = _estimate(config, tensors, problems[0] if problems else None)
    cut = sentence_length(path)
    return replace(estimate, context_length=min(estimate.context_length or cut, cut)) if cut else estimate


def kv_bytes(
    rows: int, longest: int, per_token: int, step: int = CACHE_STEP, sliding: SlidingLayers | None = None
) -> int:
    """Bytes of a dense batch cache: every row is as long as the longest, rounded up to `step` tokens.

    With `sliding`, those layers' share of `per_token` is charged for at most their window.
    """
    length = round_up(longest, step)
    if sliding is None:
        return rows * length * per_token
    full = per_token - sliding.bytes_per_token
    return rows * (length * full + min(length, sliding.window) * sliding.bytes_per_token)


def round_up(value: int, step: int) -> int:
    """The least multiple of `step` that is not below `value`."""
    return -(-value // step) * step


def _estimate(config: Config, tensors: dict[str, Tensor], problem: str | None) -> ModelEstimate:
    itemsize = float_itemsize(tensors)
    shape = key_value_shape(config)
    sliding = shape.sliding * itemsize if shape else 0
    return ModelEstimate(
        weight_bytes=total_bytes(tensors, tied=config.get("tie_word_embeddings") is True),
        kv_bytes_per_token=shape.full * itemsize + sliding if shape else 0,
        context_length=context_length(config),
        problem=problem,
        attention_heads=shape.heads if shape else 0,
        itemsize=itemsize,
        sliding=SlidingLayers(sliding, shape.window) if shape and sliding else None,
        note=None if shape or not config else "config.json does not tell the size of the key-value cache",
    )
