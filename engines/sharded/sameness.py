"""What must be the same on all hosts of a model."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from mlxd.engines.errors import LoadError, LoadFailure
from mlxd.engines.model_identity import model_contents

_PACKAGES = ("mlxd", "mlx", "mlx-lm")
FILES = "files"


def sameness(path: Path) -> dict[str, str]:
    """The versions of what computes, and a digest of the model's folder, as they are here. Raises LoadError."""
    try:
        contents = model_contents(path)
    except OSError as error:
        message = f"there is no model folder {path} ({error.strerror or error})"
        raise LoadError(LoadFailure.NOT_FOUND, message) from error
    return {**{package: _version(package) for package in _PACKAGES}, FILES: contents}


def weight_bytes(path: Path) -> int:
    """Bytes of a folder's weight files; 0 when they cannot be listed."""
    try:
        return sum(file.stat().st_size for file in path.glob("*.safetensors"))
    except OSError:
        return 0


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
