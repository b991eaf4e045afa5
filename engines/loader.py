"""Loads a model folder piece by piece on the calling thread, with progress and a way out between pieces."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.tuner.utils import load_adapters
from mlx_lm.utils import load_model, load_tokenizer

from mlxd.engines.errors import LoadError, LoadFailure
from mlxd.engines.tokenizer import Tokenizer
from mlxd.engines.types import EngineConfig, LoadProgress, ModelInfo

# Bytes evaluated between two looks at the cancel flag.
PIECE_BYTES = 64 * 2**20
# Said outright: where nothing is said, transformers asks on the terminal whether to run a model's own Python code.
NO_CODE = {"trust_remote_code": False}


@dataclass(frozen=True, slots=True, eq=False)
class LoadedText:
    """A text model with its weights evaluated, and the draft that helps it, if it has one. Its tokenizer may still be
    read: `reading` waits for it, and raises LoadError.
    """

    model: Any
    reading: Callable[[], Tokenizer]
    info: ModelInfo
    draft: Any = None

    @property
    def tokenizer(self) -> Tokenizer:
        """What `reading` gives."""
        return self.reading()


def load_text_model(
    config: EngineConfig,
    progress: Callable[[LoadProgress], None],
    cancelled: Callable[[], bool],
    split: Callable[[Any, dict[str, Any]], None] = lambda *_: None,
) -> LoadedText:
    """Load and evaluate a model, its adapter and its draft, and begin to read the tokenizer. `split` may leave a part
    of the model, by its config.json. Raises LoadError with the reason.
    """
    path = config.path
    model, description = build_model(path)
    split(model, description)
    if config.adapter is not None:
        _adapt(model, config.adapter)
    draft, draft_description = build_model(config.draft) if config.draft is not None else (None, {})
    # Layers draw first weights that those of the files replace. Their draws are a chain of keys that would never be
    # evaluated, and grow with each load.
    mx.eval(mx.random.state)
    models = [one for one in (model, draft) if one is not None]
    # beside the weights, which are read, and tried out, without the GIL
    beside = ThreadPoolExecutor(1, "tokenizer")
    reading = beside.submit(_tokenizer, path, description).result
    beside.shutdown(wait=False)
    total = evaluate_all(models, path, progress, cancelled)
    vocab_size = vocabulary_size(description, model)
    if config.draft is not None:
        _check_draft(reading(), _tokenizer(config.draft, draft_description), config)
        draft = DraftModel(draft, vocabulary_size(draft_description, draft), vocab_size)
    return LoadedText(model, reading, ModelInfo(vocab_size, total), draft)


class WrappedModel:
    """A model around whose steps something is done; everything else is its own."""

    def __init__(self, model: Any) -> None:
        self._model = model

    @property
    def layers(self) -> Any:
        return self._model.layers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


class DraftModel(WrappedModel):
    """A draft in the vocabulary of the model that it helps: padded ones differ in size.

    Logits that it has too many are cut off, and what it lacks is never proposed. To an id that it does not know it
    reads another, so that nothing is read beside its weights.
    """

    def __init__(self, model: Any, own_size: int, vocab_size: int) -> None:
        super().__init__(model)
        self._own_size = own_size
        self._vocab_size = vocab_size

    def __call__(self, tokens: mx.array, cache: Any) -> mx.array:
        logits: mx.array = self._model(mx.minimum(tokens, self._own_size - 1), cache=cache)
        missing = self._vocab_size - logits.shape[-1]
        if missing <= 0:
            return logits[..., : self._vocab_size]
        return mx.pad(logits, [(0, 0), (0, 0), (0, missing)], constant_values=-float("inf"))


def evaluate_all(
    models: list[Any], path: Path, progress: Callable[[LoadProgress], None], cancelled: Callable[[], bool]
) -> int:
    """Read all weights, piece by piece; their bytes. Raises LoadError."""
    parameters = [array for model in models for _, array in tree_flatten(model.parameters())]
    total: int = sum(array.nbytes for array in parameters)
    done = 0
    progress(LoadProgress(0, total))
    for piece in _pieces(parameters):
        if cancelled():
            raise LoadError(LoadFailure.CANCELLED, "the load was cancelled")
        _evaluate(piece, path)
        done += sum(array.nbytes for array in piece)
        progress(LoadProgress(done, total))
    return total


def _adapt(model: Any, adapter: Path) -> None:
    try:
        load_adapters(model, str(adapter))
        model.eval()  # adapters come with dropout, which is for training
    # Whatever is wrong with the adapter's files, it is wrong with the files.
    except Exception as error:
        raise LoadError(LoadFailure.BAD_FILES, f"adapter {adapter}: {describe(error)}") from error


def _check_draft(tokenizer: Tokenizer, draft: Tokenizer, config: EngineConfig) -> None:
    if not tokenizer.has_vocabulary_of(draft):
        message = (
            f"{config.path.name}: engine.draft {config.draft} has another vocabulary; choose a model of its family"
        )
        raise LoadError(LoadFailure.UNSUPPORTED, message)


def build_model(path: Path, **options: Any) -> tuple[Any, dict[str, Any]]:
    """A model whose weights are not read yet, and its config.json; `options` are those of mlx-lm's load_model.

    Raises LoadError.
    """
    if not path.is_dir():
        raise LoadError(LoadFailure.NOT_FOUND, f"there is no model folder {path}")
    check_config(path)
    # Lazy: the files' headers are read here, their bytes by the evaluation of each piece.
    try:
        model, config = load_model(path, lazy=True, **options)
    except (FileNotFoundError, KeyError, TypeError, RuntimeError, UnicodeDecodeError) as error:
        raise LoadError(LoadFailure.BAD_FILES, f"{path.name}: {describe(error)}") from error
    except ValueError as error:
        reason = LoadFailure.UNSUPPORTED if "not supported" in str(error) else LoadFailure.BAD_FILES
        raise LoadError(reason, f"{path.name}: {error}") from error
    return model, config


def check_config(path: Path) -> dict[str, Any]:
    """A folder's config.json. Raises LoadError where there is none that can be loaded."""
    file = path / "config.json"
    try:
        config = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise LoadError(LoadFailure.BAD_FILES, f"{path.name}: config.json: {describe(error)}") from error
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise LoadError(LoadFailure.BAD_FILES, f"{path.name}: config.json has no model_type")
    if config.get("model_file") is not None:
        message = f"{path.name}: config.json names Python code of the model's own (model_file), which is never run"
        raise LoadError(LoadFailure.UNSUPPORTED, message)
    return config


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
    except (MemoryError, RuntimeError) as error:
        reason = LoadFailure.OUT_OF_MEMORY if is_out_of_memory(error) else LoadFailure.BAD_FILES
        raise LoadError(reason, f"{path.name}: {describe(error)}") from error


def is_out_of_memory(error: Exception) -> bool:
    """Whether MLX, or Python, raised this for want of memory."""
    return isinstance(error, MemoryError) or any(word in str(error).lower() for word in ("alloc", "memory"))


def _tokenizer(path: Path, config: dict[str, Any]) -> Tokenizer:
    return Tokenizer(read_tokenizer(path, config))


def read_tokenizer(path: Path, config: dict[str, Any], **extra: Any) -> Any:
    """mlx-lm's TokenizerWrapper of a folder; `extra` goes over tokenizer_config.json. Raises LoadError."""
    try:
        return load_tokenizer(path, {**NO_CODE, **extra}, eos_token_ids=config.get("eos_token_id"))
    # transformers raises whatever its parsers do; all of it means that the files are not usable.
    except Exception as error:
        raise LoadError(LoadFailure.BAD_FILES, f"{path.name}: tokenizer: {describe(error)}") from error


def vocabulary_size(config: dict[str, Any], model: Any) -> int:
    """Tokens that a model has logits for, by its config.json."""
    size = config.get("vocab_size") or config.get("text_config", {}).get("vocab_size")
    return int(size or model.args.vocab_size)


def describe(error: BaseException) -> str:
    """An error with its kind, in one line."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
