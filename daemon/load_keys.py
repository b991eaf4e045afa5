"""A key for each model that changes when the model, if it is loaded, would have to be loaded again."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from mlxd.daemon.config_effect import KEYS, Applies
from mlxd.daemon.config_schema import OVERRIDE_RULES
from mlxd.daemon.model_files import Stamp, folder_stamp, loaded_part
from mlxd.daemon.settings import EngineSettings, Settings
from mlxd.registry.spec import ModelSpec

LOADED_WITH = tuple(key for key in OVERRIDE_RULES if key != "draft" and KEYS[f"engine.{key}"] is Applies.RELOAD)
"""Keys of [engine] that a loaded engine cannot change; a draft counts by its files."""


FolderFiles = tuple[str, Stamp | str]
"""Where a folder really is, and its files that a load may read; the name of the error when they cannot be listed."""


def files_of(specs: Iterable[ModelSpec]) -> dict[Path, FolderFiles]:
    """What the load keys of these models need of their folders: names, sizes and times, nothing out of the files."""
    folders = {folder for spec in specs for folder in (spec.path, spec.adapter, spec.draft) if folder is not None}
    return {folder: (os.path.realpath(folder), _stamp(folder)) for folder in folders}


def with_load_keys(
    specs: Iterable[ModelSpec], settings: Settings, files: Mapping[Path, FolderFiles]
) -> tuple[ModelSpec, ...]:
    """The specs with their load keys; `files` has all their folders."""
    return tuple(replace(spec, load_key=_load_key(spec, settings.engine_for(spec.name), files)) for spec in specs)


def _load_key(spec: ModelSpec, engine: EngineSettings, files: Mapping[Path, FolderFiles]) -> str:
    folders = [None if folder is None else files[folder] for folder in (spec.path, spec.adapter, spec.draft)]
    facts: list[object] = [folders, [OVERRIDE_RULES[key].write(_value(engine, spec, key)) for key in LOADED_WITH]]
    facts.append(repr(spec.shards))
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()


def _value(engine: EngineSettings, spec: ModelSpec, key: str) -> object:
    # without a draft nobody reads how many tokens it proposes
    if key == "draft_tokens" and spec.draft is None:
        return 0
    return getattr(engine, key)


def _stamp(folder: Path) -> Stamp | str:
    try:
        return loaded_part(folder_stamp(folder))
    except OSError as error:
        return type(error).__name__
