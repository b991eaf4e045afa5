"""Which models there are: what was discovered on disk, with the names and rules of `[[model]]` laid over it."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path

from mlxd.daemon.adapters import add_adapters
from mlxd.daemon.api.capabilities import capability_names
from mlxd.daemon.catalog_basis import Basis, FolderReader
from mlxd.daemon.config_errors import ConfigError, Problem, dotted
from mlxd.daemon.drafts import add_drafts, estimate_with_draft
from mlxd.daemon.folder_look import look_at
from mlxd.daemon.load_keys import files_of, with_load_keys
from mlxd.daemon.settings import ModelSettings, PresetSettings, SamplingSettings, Settings
from mlxd.daemon.sharding import add_shards
from mlxd.memory.estimates import ModelEstimate
from mlxd.registry.names import NameTable
from mlxd.registry.spec import ModelSpec

# Keys of an entry, and the entry itself, that may name what is not there.
_FOLLOWED = ((), ("engine", "draft"), ("hosts",), ("hostfile",))


@dataclass(frozen=True, slots=True)
class Catalog:
    """Every known model and name. `notes` are sentences about what was odd on disk."""

    specs: tuple[ModelSpec, ...]
    names: NameTable
    notes: tuple[str, ...] = ()
    basis: Basis = field(default_factory=Basis)

    @property
    def remarks(self) -> tuple[str, ...]:
        """All sentences that a person should read: what was odd on disk, and which names clash."""
        return (*self.notes, *self.names.conflicts)

    def capabilities(self, spec: ModelSpec) -> list[str]:
        """What a model can do, told from its files."""
        of_template = self.basis.capabilities.get(spec.path, ())
        return capability_names(spec.kind, of_template, takes_images=spec.takes_images)

    def estimate(self, spec: ModelSpec) -> ModelEstimate:
        """What the files of a model, and of its draft if it has one, say about its size."""
        alone = self.basis.estimates.get(spec.path) or ModelEstimate()
        if spec.draft is None:
            return alone
        return estimate_with_draft(alone, self.basis.estimates.get(spec.draft) or ModelEstimate(), spec)


@dataclass(frozen=True, slots=True)
class Survey:
    """A catalog as far as there is one, and what the configuration names that is not there.

    `troubled` are the names of entries that could not be followed, with those of their adapters.
    """

    catalog: Catalog
    problems: tuple[Problem, ...]
    troubled: frozenset[str]


def build_catalog(settings: Settings, hf_cache: Path | None, before: Basis | None = None) -> Catalog:
    """Look through the configured folders, as `survey` does. Raises ConfigError for a name that means no model."""
    found = survey(settings, hf_cache, before)
    if found.problems:
        raise ConfigError(*found.problems)
    return found.catalog


def survey(settings: Settings, hf_cache: Path | None, before: Basis | None = None) -> Survey:
    """Look through the configured folders; nothing that is or is not there makes it raise.

    In folders that cannot be looked into, models are what they were in `before`.
    """
    known = before if before is not None else Basis()
    seen = look_at(settings, hf_cache)
    folders = FolderReader(settings, hf_cache, known)
    specs = {spec.name: replace(spec, ttl=settings.models.ttl) for spec in folders.found.specs}
    problems: list[Problem] = []
    for entry in settings.model:
        base = _base_spec(entry, specs, folders, problems)
        if base is None:
            continue
        if entry.path is not None or entry.repo is not None:
            _drop_same_folder(specs, base.path, keep={other.name for other in settings.model})
        specs[entry.name] = _with_entry(base, entry)
    notes = list(folders.found.notes)
    add_adapters(settings, specs, notes)
    problems += add_drafts(settings, specs)
    problems += add_shards(settings, specs)
    if settings.models.default is not None and not problems:
        problems += _check_name(settings.models.default, "models.default", specs)
    for name in settings.models.preload:
        problems += _check_name(name, "models.preload", specs)
    files = files_of(specs.values())
    read = Basis(seen, folders.alone, files, folders.estimates, known.capabilities_of(files))
    basis = read.keeping(known, folders.kept & folders.alone.keys(), folders.kept)
    ordered = with_load_keys((specs[name] for name in sorted(specs)), settings, basis.files)
    catalog = Catalog(ordered, NameTable.build(ordered), tuple(notes), basis)
    return Survey(catalog, tuple(problems), _troubled(settings, problems))


def _troubled(settings: Settings, problems: Collection[Problem]) -> frozenset[str]:
    keys = {problem.key for problem in problems}
    at_fault = [
        entry for entry in settings.model if keys & {dotted(("model", entry.name, *rest)) for rest in _FOLLOWED}
    ]
    return frozenset(name for entry in at_fault for name in (entry.name, *entry.adapters))


def sampling_for(settings: Settings, model: str, preset: str | None) -> SamplingSettings:
    """The sampling values of a model for requests that do not say, those of a preset first."""
    entry = settings.model_for(model)
    if entry is None:
        return SamplingSettings()
    chosen = preset_for(settings, model, preset)
    return chosen.sampling.over(entry.sampling) if chosen is not None else entry.sampling


def preset_for(settings: Settings, model: str, preset: str | None) -> PresetSettings | None:
    """A model's preset by name."""
    entry = settings.model_for(model)
    if entry is None or preset is None:
        return None
    return next((candidate for candidate in entry.presets if candidate.name == preset), None)


def _base_spec(
    entry: ModelSettings, specs: dict[str, ModelSpec], folders: FolderReader, problems: list[Problem]
) -> ModelSpec | None:
    if entry.path is not None:
        return folders.model(entry.name, entry.path)
    if entry.repo is not None:
        missing = Path(entry.repo)
        return folders.model(entry.name, folders.snapshot(entry.repo) or missing)
    if entry.name not in specs:
        message = "no model of this name was found in models.dirs or the Hugging Face cache; set path or repo"
        problems.append(Problem(message, dotted(("model", entry.name))))
        return None
    return specs[entry.name]


def _with_entry(spec: ModelSpec, entry: ModelSettings) -> ModelSpec:
    return replace(
        spec,
        aliases=entry.aliases,
        presets=tuple(preset.name for preset in entry.presets),
        pinned=entry.pinned,
        ttl=entry.ttl,
    )


def _drop_same_folder(specs: dict[str, ModelSpec], path: Path, keep: Collection[str]) -> None:
    """A folder that an entry names is listed under the names of entries only, which are `keep`."""
    real = os.path.realpath(path)
    for name in [name for name, spec in specs.items() if name not in keep and os.path.realpath(spec.path) == real]:
        del specs[name]


def _check_name(name: str, key: str, specs: dict[str, ModelSpec]) -> list[Problem]:
    known = {known for spec in specs.values() for known in (spec.name, *spec.aliases, *spec.presets)}
    return [] if name in known else [Problem(f"there is no model {name!r}", key)]
