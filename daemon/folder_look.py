"""A look at the folders that models come from, without reading a file: what is there, and how its files look."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mlxd.daemon.model_files import Stamp, folder_stamp
from mlxd.daemon.settings import Settings
from mlxd.registry.hub_cache import cached_repos, snapshot_of
from mlxd.registry.model_folders import FolderWalk, lies_in


@dataclass(frozen=True, slots=True)
class Look:
    """The model folders of one moment with what their files look like, and what could not be read."""

    stamps: Mapping[Path, Stamp] = field(default_factory=dict)
    unreadable: frozenset[Path] = frozenset()

    def reads(self, path: Path) -> bool:
        """Whether nothing hindered the look at this folder."""
        return not lies_in(path, self.unreadable)

    def agrees(self, other: Look, path: Path) -> bool:
        """Whether both saw the same there, which may be nothing."""
        return self.reads(path) and other.reads(path) and self.stamps.get(path) == other.stamps.get(path)


def look_at(settings: Settings, hf_cache: Path | None) -> Look:
    """Look at every folder from which a model could come. Reads no file, and raises nothing for what is not there."""
    stamps: dict[Path, Stamp] = {}
    walk = FolderWalk()
    for path in _folders(settings, hf_cache, walk):
        try:
            stamps[path] = folder_stamp(path)
        except (FileNotFoundError, NotADirectoryError):
            continue  # gone since, or never there
        except OSError:
            walk.unreadable.add(path)
    return Look(stamps, frozenset(walk.unreadable))


def _folders(settings: Settings, hf_cache: Path | None, walk: FolderWalk) -> Iterator[Path]:
    yield from itertools.chain.from_iterable(map(walk.models, settings.models.dirs))
    if hf_cache is not None and settings.models.hf_cache and walk.can_list(hf_cache):
        yield from (snapshot for _, snapshot in cached_repos(hf_cache))
    for entry in settings.model:
        named = snapshot_of(hf_cache, entry.repo) if hf_cache is not None and entry.repo is not None else entry.path
        yield from (path for path in (named, *entry.adapters.values()) if path is not None)
