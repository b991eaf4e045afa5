"""What a model's config.json says it is, and whether the installed MLX packages have its architecture."""

from __future__ import annotations

import ast
import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from mlxd.memory.files import BadFile, read_bounded
from mlxd.memory.model_config import CONFIG_FILE, MAX_CONFIG_BYTES, read_object
from mlxd.registry.spec import ModelKind

Config = Mapping[str, Any]

_SENTENCE_TRANSFORMERS_FILE = "modules.json"
VISION_PACKAGE = "mlx_vlm"
_PACKAGES = ("mlx_lm", VISION_PACKAGE)
_REMAPPING = "MODEL_REMAPPING"
_MAX_SOURCE_BYTES = 4_000_000
_VISION_KEYS = ("vision_config", "vision_tower_config", "mm_vision_tower", "visual")
# encoders without a language head, whatever head a checkpoint carries
_ENCODERS = (
    *("bert", "distilbert", "roberta", "xlm-roberta", "camembert", "mpnet"),
    *("modernbert", "nomic_bert", "new", "gte", "jina_bert"),
)
# of these, the ones that are loaded here rather than by a package
_SERVED_ENCODERS = frozenset({"bert", "roberta", "xlm-roberta", "camembert"})
# what an architecture is called that makes no text: states, or a score for a pair of texts
_HEADLESS = ("Model", "ForTextEncoding", "ForSequenceClassification")


def read_model_config(folder: Path) -> Config:
    """A folder's config.json as it is. Raises BadFile."""
    return read_object(folder / CONFIG_FILE, MAX_CONFIG_BYTES)


@dataclass(frozen=True, slots=True)
class FolderKind:
    """The kind of a model, and whether the installed packages can give images to it."""

    kind: ModelKind = ModelKind.TEXT
    takes_images: bool = False


def folder_kind(folder: Path) -> FolderKind:
    """What the model in a folder is; text when its config cannot be read."""
    try:
        config = read_model_config(folder)
    except BadFile:
        return FolderKind()
    kind = config_kind(config)
    if kind is ModelKind.VISION:
        return FolderKind(kind, takes_images=vision_architectures().supports(config.get("model_type")))
    is_text_encoder = kind is ModelKind.TEXT and os.path.lexists(folder / _SENTENCE_TRANSFORMERS_FILE)
    return FolderKind(ModelKind.EMBEDDING if is_text_encoder else kind)


def config_kind(config: Config) -> ModelKind:
    """The kind of a model by its config: image parts make it vision, a missing language head embedding.

    Cross-encoders, which score pairs of texts, count as embedding too.
    """
    if any(config.get(key) for key in _VISION_KEYS):
        return ModelKind.VISION
    if config.get("model_type") in _ENCODERS:
        return ModelKind.EMBEDDING
    architectures = config.get("architectures")
    names = [name for name in architectures if isinstance(name, str)] if isinstance(architectures, list) else []
    headless = [name.endswith(_HEADLESS) and not name.endswith("HeadModel") for name in names]
    return ModelKind.EMBEDDING if headless and all(headless) else ModelKind.TEXT


class Architectures:
    """The model types that can be loaded: encoders here, others by the installed packages, which are not imported."""

    def __init__(self, packages: Mapping[str, Path] | None = None) -> None:
        self._folders = installed_packages() if packages is None else packages
        self._renamed: Mapping[str, str] | None = None

    def supports(self, model_type: object) -> bool:
        """Whether some package has a module for a config's `model_type`, or it is an encoder that is loaded here."""
        if not isinstance(model_type, str) or not model_type.replace("-", "_").isidentifier():
            return False
        if model_type in _SERVED_ENCODERS or self._has_module(model_type):
            return True
        if self._renamed is None:
            self._renamed = {key: name for folder in self._folders.values() for key, name in _renamed(folder).items()}
        return self._has_module(self._renamed.get(model_type, model_type))

    def _has_module(self, model_type: str) -> bool:
        modules = [folder / "models" / model_type for folder in self._folders.values()]
        return any(module.with_name(f"{model_type}.py").is_file() or module.is_dir() for module in modules)


@cache
def vision_architectures() -> Architectures:
    """Those that take images: the ones of mlx-vlm, none where it is not installed."""
    return Architectures({name: path for name, path in installed_packages().items() if name == VISION_PACKAGE})


def installed_packages() -> dict[str, Path]:
    """The folders of the MLX model packages that are installed."""
    found = {name: importlib.util.find_spec(name) for name in _PACKAGES}
    return {name: Path(spec.origin).parent for name, spec in found.items() if spec is not None and spec.origin}


def _renamed(package: Path) -> dict[str, str]:
    """The package's table of model types that another module serves, read from its source."""
    try:
        tree = ast.parse(read_bounded(package / "utils.py", _MAX_SOURCE_BYTES))
    except (BadFile, SyntaxError, ValueError):
        return {}
    for node in tree.body:
        names = (
            [target.id for target in node.targets if isinstance(target, ast.Name)]
            if isinstance(node, ast.Assign)
            else []
        )
        if isinstance(node, ast.Assign) and _REMAPPING in names and isinstance(node.value, ast.Dict):
            pairs = zip(node.value.keys, node.value.values, strict=True)
            return {
                str(key.value): str(value.value)
                for key, value in pairs
                if isinstance(key, ast.Constant) and isinstance(value, ast.Constant)
            }
    return {}
