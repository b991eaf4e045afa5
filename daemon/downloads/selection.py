"""Which files of a repository an MLX model needs: pure functions of names and sizes."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

import msgspec

from mlxd.daemon.downloads.messages import DownloadFailed
from mlxd.memory.files import shown
from mlxd.memory.model_config import CONFIG_FILE
from mlxd.memory.weights import INDEX_FILE, WEIGHT_FILES

MAX_FILES = 1000
MAX_INDEX_BYTES = 100_000_000

_ROOT = ("*.json", "*.jinja", "*.model", "*.tiktoken", "vocab.txt", "merges.txt")
_TEMPLATES = "additional_chat_templates"
# a module of sentence-transformers, such as 1_Pooling or 2_Dense
_MODULE = re.compile(r"\d{1,2}_[A-Za-z]{1,40}")
_MODULE_FILES = (CONFIG_FILE, "model.safetensors")
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+@=, -]{0,149}")
_DEEPEST = 2


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file as the hub declares it: its size in bytes, and the SHA-256 of its content or the SHA-1 of its git blob."""

    name: str
    size: int
    sha256: str | None = None
    blob_sha1: str | None = None


class _Index(msgspec.Struct, frozen=True):
    weight_map: dict[str, str]


def select(repo: str, files: Iterable[HubFile]) -> list[HubFile]:
    """The files that a model may need, small ones before its weights. Raises DownloadFailed if it is no model."""
    every = list(files)
    needed = {file.name.casefold(): file for file in every if _is_needed(file.name)}
    names = {file.name for file in needed.values()}
    if not fnmatch.filter(names, WEIGHT_FILES):
        raise DownloadFailed("unsupported", _no_weights(repo, [file.name for file in every]))
    if CONFIG_FILE not in names:
        raise DownloadFailed("unsupported", f"{repo} has no {CONFIG_FILE}, so it is no model that mlxd can serve")
    if len(needed) > MAX_FILES:
        message = f"{repo} has {len(needed)} files that look like parts of a model; at most {MAX_FILES} are taken"
        raise DownloadFailed("bad_repository", message)
    return sorted(needed.values(), key=lambda file: (_is_weights(file.name), file.name))


def named_by_index(repo: str, files: Sequence[HubFile], index: bytes) -> list[HubFile]:
    """The files without weights that the index does not name: a second copy, say, in one piece.

    An index of which no file is there is left out itself. Raises DownloadFailed when it cannot be read, or if only
    some are there.
    """
    try:
        wanted = set(msgspec.json.decode(index, type=_Index).weight_map.values())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DownloadFailed("bad_repository", f"{INDEX_FILE} of {repo} cannot be read: {error}") from error
    missing = wanted - {file.name for file in files}
    if wanted and missing == wanted:
        return [file for file in files if file.name != INDEX_FILE]
    if missing or not wanted:
        what = f"names {shown(min(missing))}, which is not there" if missing else "names no file"
        raise DownloadFailed("bad_repository", f"{INDEX_FILE} of {repo} {what}")
    return [file for file in files if not fnmatch.fnmatchcase(file.name, WEIGHT_FILES) or file.name in wanted]


def _is_needed(name: str) -> bool:
    parts = name.split("/")
    if len(parts) > _DEEPEST or not all(map(_PART.fullmatch, parts)):
        return False
    folder, leaf = (None, *parts)[-_DEEPEST:]
    if folder is None:
        return any(fnmatch.fnmatchcase(leaf or "", pattern) for pattern in (*_ROOT, WEIGHT_FILES))
    if folder == _TEMPLATES:
        return fnmatch.fnmatchcase(leaf or "", "*.jinja")
    return _MODULE.fullmatch(folder) is not None and leaf in _MODULE_FILES


def _is_weights(name: str) -> bool:
    return PurePosixPath(name).suffix == ".safetensors"


def _no_weights(repo: str, names: Collection[str]) -> str:
    if any(name.lower().endswith(".gguf") for name in names):
        return (
            f"{repo} has GGUF files and no safetensors; download one and turn it into a model with "
            "`mlxd import FILE.gguf --name N`, or pull an MLX version of it"
        )
    return f"{repo} has no safetensors weights ({WEIGHT_FILES}); pull an MLX version of it"
