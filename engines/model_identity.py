"""Tells whether two loads are of the same model, so that the cache of one may serve the other. No MLX here."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

# Too big to be read; a weight file is known by its size and its time.
_WEIGHTS = (".safetensors", ".gguf", ".npz", ".bin")
# They decide what the model computes and what its tokens mean, so their bytes count and not their times.
_CONTENT = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "preprocessor_config.json",
    "processor_config.json",
)
_CODE = ".py"
# A cache's classes and numbers may change with them.
_PACKAGES = ("mlx", "mlx-lm", "mlx-vlm")


def model_identity(path: Path, extra: str = "") -> str:
    """32 hexadecimal digits that change with the model folder's files, with MLX and with `extra`, such as an adapter.

    `path` may be a single file. Links are followed. Raises OSError when it or one of its files cannot be read.
    """
    facts = [[name, _version(name)] for name in _PACKAGES], extra, [_facts(file) for file in _files(path)]
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()


def model_contents(path: Path) -> str:
    """As `model_identity`, but the same for copies of a folder: weights by their names and sizes. Raises OSError."""
    facts = [_facts(file)[:2] if file.suffix in _WEIGHTS else _facts(file) for file in _files(path)]
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()


def _files(path: Path) -> list[Path]:
    if stat.S_ISDIR(path.stat().st_mode):
        return [file for file in sorted(path.iterdir()) if not file.name.startswith(".") and file.is_file()]
    return [path]


def _facts(file: Path) -> list[str | int | None]:
    real = file.resolve()
    status = real.stat()
    if file.suffix in _WEIGHTS:
        # a file in the hub's cache is named for its content
        return [file.name, status.st_size, real.name, status.st_mtime_ns]
    content = _digest(real) if file.name in _CONTENT or file.suffix == _CODE else None
    return [file.name, status.st_size, content]


def _digest(file: Path) -> str:
    # opened without waiting: what was a file a moment ago may be a pipe now
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{file.name} is not a regular file")
        return hashlib.file_digest(stream, "blake2b").hexdigest()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
