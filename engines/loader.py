"""Loads a model folder piece by piece on the calling thread, with progress and a way out between pieces."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model, load_tokenizer

from mlxd.engines.errors import LoadError, LoadFailure
from mlxd.engines.tokenizer import Tokenizer
from mlxd.engines.types import LoadProgress, ModelInfo

# Bytes evaluated between two looks at the cancel flag.
PIECE_BYTES = 64 * 2**20


def load_text_model(
    path: Path, progress: Callable[[LoadProgress], None], cancelled: Callable[[], bool]
) -> tuple[Any, Tokenizer, ModelInfo]:
    """Load and evaluate a model and its tokenizer. Raises LoadError with the reason."""
    model, config = _build(path)
    parameters = [array for _, array in tree_flatten(model.parameters())]
    total = sum(array.nbytes for array in parameters)
    done = 0
    progress(LoadProgress(0, total))
    for piece in _pieces(parameters):
        if cancelled():
            raise LoadError(LoadFailure.CANCELLED, "the load was cancelled")
        _evaluate(piece, path)
        done += sum(array.nbytes for array in piece)
        progress(LoadProgress(done, total))
    tokenizer = _tokenizer(path, config)
    return model, tokenizer, ModelInfo(vocab_size=_vocab_size(config, model), weight_bytes=total)


def _build(path: Path) -> tuple[Any, dict[str, Any]]:
    if not path.is_dir():
        raise LoadError(LoadFailure.NOT_FOUND, f"there is no model folder {path}")
    _check_config(path)
    # Lazy: the files' headers are read here, their bytes by the evaluation of each piece.
    try:
        model, config = load_model(path, lazy=True)
    except (FileNotFoundError, KeyError, TypeError, RuntimeError, UnicodeDecodeError) as error:
        raise LoadError(LoadFailure.BAD_FILES, f"{path.name}: {_describe(error)}") from error
    except ValueError as error:
        reason = LoadFailure.UNSUPPORTED if "not supported" in str(error) else LoadFailure.BAD_FILES
        raise LoadError(reason, f"{path.name}: {error}") from error
    return model, config


def _check_config(path: Path) -> None:
    file = path / "config.json"
    try:
        config = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise LoadError(LoadFailure.BAD_FILES, f"{path.name}: config.json: {_describe(error)}") from error
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise LoadError(LoadFailure.BAD_FILES, f"{path.name}: config.json has no model_type")


def _pieces(arrays: list[mx.array]) -> Iterator[list[mx.array]]:
    piece: list[mx.array] = []
    size = 0
    for array in arrays:
        piece.append(array)
        size += array.nbytes
        if size >= PIECE_BYTES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def _evaluate(piece: list[mx.array], path: Path) -> None:
    try:
        mx.eval(piece)
    except MemoryError as error:
        raise LoadError(LoadFailure.OUT_OF_MEMORY, f"{path.name}: {_describe(error)}") from error
    except RuntimeError as error:
        short = any(word in str(error).lower() for word in ("alloc", "memory"))
        reason = LoadFailure.OUT_OF_MEMORY if short else LoadFailure.BAD_FILES
        raise LoadError(reason, f"{path.name}: {_describe(error)}") from error


def _tokenizer(path: Path, config: dict[str, Any]) -> Tokenizer:
    try:
        return Tokenizer(load_tokenizer(path, eos_token_ids=config.get("eos_token_id")))
    # transformers raises whatever its parsers do; all of it means that the files are not usable.
    except Exception as error:
        raise LoadError(LoadFailure.BAD_FILES, f"{path.name}: tokenizer: {_describe(error)}") from error


def _vocab_size(config: dict[str, Any], model: Any) -> int:
    size = config.get("vocab_size") or config.get("text_config", {}).get("vocab_size")
    return int(size or model.args.vocab_size)


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
