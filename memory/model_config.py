"""config.json as plain values: nested text configs merged, odd values ignored."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlxd.memory.files import BadFile, read_bounded

CONFIG_FILE = "config.json"
MAX_CONFIG_BYTES = 32_000_000
# larger numbers in a config are nonsense, and would make nonsense of products
MAX_NUMBER = 1 << 32
MAX_LIST = 10_000

_TEXT_CONFIGS = ("text_config", "llm_config", "language_config")
_CONTEXT_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_sequence_length",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "n_ctx",
)

# sentence-transformers' own bound for a model's texts; the name in the middle is the family's
_SENTENCE_CONFIGS = "sentence_*_config.json"
# their positions begin behind the padding token
_ROBERTAS = frozenset({"roberta", "xlm-roberta", "camembert"})

Config = Mapping[str, Any]


def read_config(folder: Path) -> Config:
    """The language model's configuration: its nested part, where there is one, over the outer. Raises BadFile."""
    config = read_object(folder / CONFIG_FILE, MAX_CONFIG_BYTES)
    for key in _TEXT_CONFIGS:
        nested = config.get(key)
        if isinstance(nested, dict):
            return {**config, **nested}
    return config


def read_object(path: Path, limit: int) -> dict[str, Any]:
    """A JSON object of at most `limit` bytes; NaN and Infinity are allowed as configs hold them. Raises BadFile."""
    try:
        value = json.loads(read_bounded(path, limit))
    except BadFile:
        raise
    except (ValueError, RecursionError) as error:
        raise BadFile(f"{path.name} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadFile(f"{path.name} is not a JSON object")
    return value


def model_type(config: Config) -> str:
    """The family's name as mlx-lm knows it, empty when there is none."""
    name = config.get("model_type")
    return name if isinstance(name, str) else ""


def context_length(config: Config) -> int:
    """Tokens the model's context holds, 0 when the configuration does not say."""
    length = number(config, *_CONTEXT_KEYS) or 0
    if model_type(config) not in _ROBERTAS:
        return length
    return max(0, length - (number(config, "pad_token_id") or 1) - 1)


def sentence_length(folder: Path) -> int:
    """Tokens that sentence-transformers cuts a text to, 0 when no file says so, or none that can be read."""
    try:
        lengths = [
            number(read_object(path, MAX_CONFIG_BYTES), "max_seq_length") for path in folder.glob(_SENTENCE_CONFIGS)
        ]
    except (BadFile, OSError):
        return 0
    return min((length for length in lengths if length is not None), default=0)


def number(config: Config, *keys: str) -> int | None:
    """The first of the keys that holds a positive whole number, None when none does."""
    for key in keys:
        value = config.get(key)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < MAX_NUMBER:
            return value
    return None


def words(config: Config, key: str) -> list[str]:
    """A list of strings, empty when the key holds anything else or more than any model has layers."""
    value = _short_list(config, key)
    return value if all(isinstance(item, str) for item in value) else []


def numbers(config: Config, key: str) -> list[int]:
    """A list of whole numbers from 0, empty when the key holds anything else or more than any model has layers."""
    value = _short_list(config, key)
    whole = all(isinstance(item, int) and not isinstance(item, bool) and 0 <= item < MAX_NUMBER for item in value)
    return value if whole else []


def _short_list(config: Config, key: str) -> list[Any]:
    value = config.get(key)
    return value if isinstance(value, list) and len(value) <= MAX_LIST else []
