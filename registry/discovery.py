"""Finds the models on disk: in the models folders, and in the Hugging Face cache what MLX can serve."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from mlxd.memory.files import BadFile
from mlxd.memory.model_config import CONFIG_FILE
from mlxd.registry.hub_cache import cached_repos, snapshot_of
from mlxd.registry.model_folders import FolderWalk, lies_in, shown_path
from mlxd.registry.model_kind import Architectures, folder_kind, read_model_config
from mlxd.registry.spec import ModelSpec

__all__ = ["Discovery", "FolderFacts", "InspectFolder", "discover", "folder_kind", "snapshot_of"]


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
    """The models found, in the order of their folders, and sentences about what was odd.

    `unreadable` are the folders that could not be looked into.
    """

    specs: tuple[ModelSpec, ...]
    notes: tuple[str, ...]
    unreadable: frozenset[Path] = frozenset()


_NOTHING: Mapping[Path, ModelSpec] = MappingProxyType({})


def discover(
    dirs: Sequence[Path], hf_cache: Path | None, inspect: InspectFolder, known: Mapping[Path, ModelSpec] = _NOTHING
) -> Discovery:
    """List the models in `dirs`, one or two levels deep, then those in the hub's cache that MLX can serve.

    Nothing on disk makes it raise: a broken model is listed with its problem, what cannot be listed is noted.
    Models that are `known` by their folder stay listed as they are while it cannot be seen whether they are there.
    Of equal names the first wins; a later one is listed with its folder's name before it, if that is free.
    """
    walk = FolderWalk(known)
    names = _Names(walk.notes)
    specs: list[ModelSpec] = []
    for folder in _distinct(dirs):
        if os.path.lexists(folder / CONFIG_FILE):
            walk.notes.append(f"{shown_path(folder)} is a model itself; models.dirs wants the folder that it is in")
        for path in walk.models(folder):
            listed = names.claim(path.relative_to(folder).as_posix(), folder)
            if listed is not None:
                before = known.get(path) if lies_in(path, walk.unreadable) else None
                specs.append(replace(before or _spec(path.name, path, _facts(path, inspect)), name=listed))
    if hf_cache is not None:
        for spec in _cached(hf_cache, inspect, known, walk):
            listed = names.claim(spec.name, hf_cache)
            if listed is not None:
                specs.append(replace(spec, name=listed))
    return Discovery(tuple(specs), tuple(walk.notes), frozenset(walk.unreadable))


class _Names:
    """Gives each model a name that no other has, letter case aside."""

    def __init__(self, notes: list[str]) -> None:
        self._notes = notes
        self._taken: dict[str, str] = {}

    def claim(self, name: str, folder: Path) -> str | None:
        """The name to list a model of `folder` under; None when it has to stay out."""
        place = shown_path(folder / name)
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


def _spec(name: str, path: Path, facts: FolderFacts) -> ModelSpec:
    what = folder_kind(path)
    return ModelSpec(
        name=name,
        path=path,
        kind=what.kind,
        takes_images=what.takes_images,
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


def _cached(
    cache: Path, inspect: InspectFolder, known: Mapping[Path, ModelSpec], walk: FolderWalk
) -> Iterator[ModelSpec]:
    """The repos in the hub's cache that MLX can serve, the known ones while it cannot be listed."""
    if walk.can_list(cache):
        yield from _servable(cache, inspect, walk.notes)
        return
    kept = [spec for path, spec in sorted(known.items()) if path.is_relative_to(cache)]
    if kept:
        walk.notes.append(f"{shown_path(cache)} cannot be read: the models of the Hugging Face cache stay as they were")
    yield from kept


def _servable(cache: Path, inspect: InspectFolder, notes: list[str]) -> Iterator[ModelSpec]:
    """The repos that MLX can serve; notes tell of those that only lack files."""
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
            yield _spec(repo, snapshot, facts)
        else:
            notes.append(f"{repo} in the Hugging Face cache is not listed: {facts.problem}")
