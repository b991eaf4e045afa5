"""What a catalog was made from, and the reading of model folders for it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from mlxd.daemon.api.capabilities import template_capabilities
from mlxd.daemon.chat_templates import read_template
from mlxd.daemon.folder_look import Look
from mlxd.daemon.load_keys import FolderFiles
from mlxd.daemon.settings import Settings
from mlxd.memory.estimates import ModelEstimate, inspect_folder
from mlxd.registry.discovery import Discovery, FolderFacts, discover
from mlxd.registry.hub_cache import repo_folder, snapshot_of
from mlxd.registry.model_folders import FolderWalk, lies_in
from mlxd.registry.model_kind import folder_kind
from mlxd.registry.spec import ModelSpec

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Basis:
    """What a catalog was made from. `seen` is a look from before the folders were read.

    `alone` has each folder as a model without what the configuration says of it, `files` what load keys were made of,
    `estimates` what the files say about sizes, `capabilities` what the chat templates say of the models.
    """

    seen: Look = field(default_factory=Look)
    alone: Mapping[Path, ModelSpec] = field(default_factory=dict)
    files: Mapping[Path, FolderFiles] = field(default_factory=dict)
    estimates: Mapping[Path, ModelEstimate] = field(default_factory=dict)
    capabilities: Mapping[Path, tuple[str, ...]] = field(default_factory=dict)

    def keeping(self, before: Basis, read: Collection[Path], seen: Collection[Path]) -> Basis:
        """This, but with what `before` has: what was read of some folders, and what was seen of some."""
        return Basis(
            replace(self.seen, stamps=_laid(self.seen.stamps, before.seen.stamps, seen)),
            _laid(self.alone, before.alone, read),
            _laid(self.files, before.files, read),
            _laid(self.estimates, before.estimates, read),
            _laid(self.capabilities, before.capabilities, read),
        )

    def capabilities_of(self, files: Mapping[Path, FolderFiles]) -> dict[Path, tuple[str, ...]]:
        """What the chat templates in these folders say; only those are read whose files are others than they were."""
        return {
            path: self.capabilities[path]
            if path in self.capabilities and self.files.get(path) == own
            else template_capabilities(read_template(path))
            for path, own in files.items()
        }


def _laid(new: Mapping[Path, T], old: Mapping[Path, T], folders: Collection[Path]) -> dict[Path, T]:
    others = {path: value for path, value in new.items() if path not in folders}
    return others | {path: old[path] for path in folders if path in old}


class FolderReader:
    """Reads the folders of models once. Those that cannot be looked into are what they were in `before`."""

    def __init__(self, settings: Settings, hf_cache: Path | None, before: Basis) -> None:
        self.estimates: dict[Path, ModelEstimate] = {}
        self._hf_cache = hf_cache
        self._before = before
        cache = hf_cache if settings.models.hf_cache else None
        self.found: Discovery = discover(settings.models.dirs, cache, self._inspect, before.alone)
        self.alone = {spec.path: spec for spec in self.found.specs}
        walk = FolderWalk()
        hidden = set(self.found.unreadable)
        if hf_cache is not None and not walk.can_list(hf_cache):
            hidden |= walk.unreadable
        self.kept = frozenset(path for path in before.alone if lies_in(path, hidden))

    def snapshot(self, repo: str) -> Path | None:
        """The folder of a repo in the hub's cache, None when it is not there."""
        if self._hf_cache is None:
            return None
        place = repo_folder(self._hf_cache, repo)
        kept = (path for path in self.kept if path.is_relative_to(place))
        return snapshot_of(self._hf_cache, repo) or next(kept, None)

    def model(self, name: str, path: Path) -> ModelSpec:
        """The model in a folder that the configuration names."""
        if path not in self.alone:
            self.alone[path] = self._before.alone[path] if path in self.kept else self._read(name, path)
        return replace(self.alone[path], name=name)

    def _read(self, name: str, path: Path) -> ModelSpec:
        facts, what = self._inspect(path), folder_kind(path)
        return ModelSpec(
            name,
            path,
            kind=what.kind,
            takes_images=what.takes_images,
            weight_bytes=facts.weight_bytes,
            kv_bytes_per_token=facts.kv_bytes_per_token,
            context_length=facts.context_length,
            problem=facts.problem,
        )

    def _inspect(self, path: Path) -> FolderFacts:
        estimate = self.estimates[path] = inspect_folder(path)
        return FolderFacts(
            estimate.weight_bytes, estimate.kv_bytes_per_token, estimate.context_length, estimate.problem
        )
