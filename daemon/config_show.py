"""Settings as people and clients see them: in the form of the file, without secrets."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from mlxd.daemon.config_errors import KeyPath, dotted
from mlxd.daemon.config_rules import Rule
from mlxd.daemon.config_schema import (
    ADAPTER_PATH,
    HOST_RULES,
    MODEL_RULES,
    OVERRIDE_RULES,
    PEER_RULES,
    SAMPLING_RULES,
    SECTIONS,
    SHARD_RULES,
)
from mlxd.daemon.settings import LoadedConfig, ModelSettings, PresetSettings, SamplingSettings, Settings

NAMED = (("model",), ("peer",))
"""The arrays of tables whose entries have names."""


def to_public(settings: Settings) -> dict[str, Any]:
    """All settings as JSON data in the form of the file, so that they could be read again; no secrets."""
    sections = {name: _written(getattr(settings, name), table.rules) for name, table in SECTIONS.items()}
    peers = [_without_empty(_written(entry, PEER_RULES)) for entry in settings.peer]
    return sections | {"model": [_model(entry) for entry in settings.model], "peer": peers}


def describe(loaded: LoadedConfig) -> list[tuple[str, str, str]]:
    """Every dotted key with its value in TOML and where it came from, in the order of the file."""
    return [
        (key, json.dumps(value, ensure_ascii=False), loaded.origins.get(key, "default"))
        for key, value in leaves(to_public(loaded.settings))
    ]


def leaves(value: object) -> Iterator[tuple[str, Any]]:
    """The dotted keys of nested tables with their values; models and peers go by name, other elements by index."""
    return ((dotted(at), element) for at, element in paths(value))


def paths(value: object, at: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """The same, with each key as a path."""
    if isinstance(value, dict):
        for key, element in value.items():
            yield from paths(element, (*at, key))
    elif isinstance(value, list) and value and all(isinstance(element, dict) for element in value):
        for index, element in enumerate(value):
            name = element.get("name") if at in NAMED else None
            yield from paths(element, (*at, name if isinstance(name, str) and name else index))
    elif at not in NAMED:
        yield at, value


def _written(table: Struct, rules: Mapping[str, Rule]) -> dict[str, Any]:
    return {key: rule.write(getattr(table, key)) for key, rule in rules.items()}


def _without_empty(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value not in ("", None)}


def _model(entry: ModelSettings) -> dict[str, Any]:
    about_hosts = {**HOST_RULES, **SHARD_RULES}
    public = _without_empty(_written(entry, {key: MODEL_RULES[key] for key in MODEL_RULES if key not in about_hosts}))
    if entry.is_sharded:
        public |= {key: value for key, value in _without_empty(_written(entry, about_hosts)).items() if value != []}
    if entry.adapters:
        public["adapters"] = {name: ADAPTER_PATH.write(folder) for name, folder in entry.adapters.items()}
    if entry.engine:
        public["engine"] = {key: OVERRIDE_RULES[key].write(value) for key, value in entry.engine.items()}
    if sampling := _sampling(entry.sampling):
        public["sampling"] = sampling
    if entry.presets:
        public["presets"] = [_preset(preset) for preset in entry.presets]
    return public


def _preset(preset: PresetSettings) -> dict[str, Any]:
    tables = {"sampling": _sampling(preset.sampling), "template": dict(preset.template)}
    return {"name": preset.name} | {key: table for key, table in tables.items() if table}


def _sampling(sampling: SamplingSettings) -> dict[str, Any]:
    return {key: SAMPLING_RULES[key].write(value) for key, value in sampling.given().items()}
