"""Finds the models on disk: in the models folders, and in the Hugging Face cache what MLX can serve."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from mlxd.memory.files import BadFile, reason
from mlxd.memory.model_config import CONFIG_FILE
from mlxd.registry.hub_cache import cached_repos, snapshot_of
from mlxd.registry.model_kind import Architectures, folder_kind, read_model_config
from mlxd.registry.spec import ModelSpec

__all__ = ["Discovery", "FolderFacts", "InspectFolder", "discover", "folder_kind", "snapshot_of"]

_LEVELS = 2


@dataclass(frozen=True, slots=True)
class FolderFacts:
    """What the files of a model folder say; bytes and tokens, 0 means unknown. `problem` is a sentence or None."""

    weight_bytes: int = 0
    kv_bytes_per_token: int = 0
    context_length: int = 0
    problem: str | None = None


class InspectFolder(Protocol):
    """Reads the facts of a model folder."""

    def __call__(self, path: Path, /) -> FolderFacts: ...


@dataclass(frozen=True, slots=True)
class Discovery:
    """The models found, in the order of their folders, and sentences about what was odd."""

    specs: tuple[ModelSpec, ...]
    notes: tuple[str, ...]


def discover(dirs: Sequence[Path], hf_cache: Path | None, inspect: InspectFolder) -> Discovery:
    """List the models in `dirs`, one or two levels deep, then those in the hub's cache that MLX can serve.

    Nothing on disk makes it raise: a broken model is listed with its problem, what cannot be listed is noted.
    Of equal names the first wins; a later one is listed with its folder's name before it, if that is free.
    """
    notes: list[str] = []
    names = _Names(notes)
    specs: list[ModelSpec] = []
    for folder in _distinct(dirs):
        if os.path.lexists(folder / CONFIG_FILE):
            notes.append(f"{_shown(folder)} is a model itself; models.dirs wants the folder that it is in")
        for name, path in _walk(folder, "", _LEVELS, notes):
            listed = names.claim(name, folder)
            if listed is not None:
                specs.append(_spec(listed, path, _facts(path, inspect)))
    if hf_cache is not None:
        for name, path, facts in _servable(hf_cache, inspect, notes):
            listed = names.claim(name, hf_cache)
            if listed is not None:
                specs.append(_spec(listed, path, facts))
    return Discovery(tuple(specs), tuple(notes))


class _Names:
    """Gives each model a name that no other has, letter case aside."""

    def __init__(self, notes: list[str]) -> None:
        self._notes = notes
        self._taken: dict[str, str] = {}

    def claim(self, name: str, folder: Path) -> str | None:
        """The name to list a model of `folder` under; None when it has to stay out."""
        place = _shown(folder / name)
        first = self._taken.setdefault(name.casefold(), place)
        if first == place:
            return name
        longer = f"{folder.name}/{name}"
        if self._taken.setdefault(longer.casefold(), place) == place:
            self._notes.append(f"{name} means {first}; the model in {place} is listed as {longer}")
            return longer
        self._notes.append(f"{name} means {first}; the model in {place} is not listed, give its folder another name")
        return None


def _distinct(dirs: Sequence[Path]) -> Iterator[Path]:
    seen: set[str] = set()
    for folder in dirs:
        real = os.path.realpath(folder)
        if real not in seen:
            seen.add(real)
            yield folder


def _walk(folder: Path, prefix: str, levels: int, notes: list[str]) -> Iterator[tuple[str, Path]]:
    """Names and paths of the model folders below `folder`; hidden and temporary ones are passed over.

    With no levels left it only finds out whether the folder can be read.
    """
    try:
        with os.scandir(folder) as entries:
            found = sorted(entry.name for entry in entries if not entry.name.startswith("."))
    except OSError as error:
        notes.append(f"{_shown(folder)} cannot be read: {reason(error)}")
        return
    for leaf in found if levels else ():
        path = folder / leaf
        if not _is_folder(path, notes):
            continue
        if os.path.lexists(path / CONFIG_FILE):
            yield f"{prefix}{leaf}", path
        else:
            yield from _walk(path, f"{prefix}{leaf}/", levels - 1, notes)


def _is_folder(path: Path, notes: list[str]) -> bool:
    # 1. files are of no interest, links that lead nowhere or in a circle are
    # 2. a link to a folder that holds it would list models twice
    # 3. a name that cannot be sent in a request cannot be a model's
    try:
        is_folder = stat.S_ISDIR(path.stat().st_mode)
    except OSError as error:
        notes.append(f"{_shown(path)} cannot be read: {reason(error)}")
        return False
    if not is_folder:
        return False
    if path.is_symlink() and path.resolve() in (path.parent.resolve(), *path.parent.resolve().parents):
        notes.append(f"{_shown(path)} is a link to a folder that holds it")
        return False
    if not path.name.isprintable():
        notes.append(f"{_shown(path)} is not listed: its name is not printable UTF-8 text")
        return False
    return True


def _spec(name: str, path: Path, facts: FolderFacts) -> ModelSpec:
    return ModelSpec(
        name=name,
        path=path,
        kind=folder_kind(path),
        weight_bytes=facts.weight_bytes,
        kv_bytes_per_token=facts.kv_bytes_per_token,
        context_length=facts.context_length,
        problem=facts.problem,
    )


def _facts(path: Path, inspect: InspectFolder) -> FolderFacts:
    try:
        return inspect(path)
    except (OSError, ValueError) as error:
        return FolderFacts(problem=f"the folder cannot be read: {error}")


def _servable(cache: Path, inspect: InspectFolder, notes: list[str]) -> Iterator[tuple[str, Path, FolderFacts]]:
    """The repos in the hub's cache that MLX can serve; notes tell of those that only lack files."""
    architectures = Architectures()
    for repo, snapshot in cached_repos(cache):
        try:
            config = read_model_config(snapshot)
        except BadFile:
            continue
        if not repo.isprintable() or not architectures.supports(config.get("model_type")):
            continue
        facts = _facts(snapshot, inspect)
        if facts.problem is None:
            yield repo, snapshot, facts
        else:
            notes.append(f"{repo} in the Hugging Face cache is not listed: {facts.problem}")


def _shown(path: Path) -> str:
    text = str(path)
    return text if text.isprintable() else ascii(text)
