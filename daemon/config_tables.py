"""Reads the tables of a configuration by their rules, and notes every problem on the way."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from mlxd.daemon.config_errors import KeyPath, Report, shown
from mlxd.daemon.config_rules import Base, Rule, Unexpected
from mlxd.daemon.config_schema import (
    ADAPTER_NAME,
    ADAPTER_PATH,
    DRAFT_RULES,
    FEWEST_HOSTS,
    HOST_RULES,
    MODEL_RULES,
    MODEL_TABLES,
    OVERRIDE_RULES,
    PEER_RULES,
    PRESET_RULES,
    PRESET_TABLES,
    SAMPLING_RULES,
    SECTIONS,
    SHARD_RULES,
    WHOLE_DAEMON,
    dotted_keys,
)
from mlxd.daemon.settings import PresetSettings, SamplingSettings

_MODEL_ELSEWHERE = [f"engine.{key}" for key in OVERRIDE_RULES] + [f"sampling.{key}" for key in SAMPLING_RULES]
# the parameters of apply_chat_template, whose keyword arguments go on to the template
_TEMPLATE_TAKEN = frozenset(
    {
        *("conversation", "messages", "tools", "chat_template", "tokenize", "tokenizer_kwargs"),
        *("add_generation_prompt", "continue_final_message", "padding", "truncation", "max_length"),
        *("return_tensors", "return_dict", "return_assistant_tokens_mask"),
    }
)


class TableReader:
    """Reads tables of one source; `base` is what its relative paths are relative to."""

    def __init__(self, report: Report, base: Base) -> None:
        self._report = report
        self._base = base

    def keys(
        self,
        raw: object,
        at: KeyPath,
        rules: Mapping[str, Rule],
        tables: Collection[str] = (),
        elsewhere: Collection[str] = (),
    ) -> dict[str, Any]:
        """The valid values among those that have a rule; `tables` are keys that somebody else reads."""
        values: dict[str, Any] = {}
        for key, value in self._table(raw, at).items():
            if key in rules:
                values |= self._value(key, value, at, rules[key])
            elif key not in tables:
                self._report.unknown((*at, key), {*rules, *tables}, elsewhere)
        return values

    def _value(self, key: str, value: object, at: KeyPath, rule: Rule) -> dict[str, Any]:
        try:
            return {key: rule.read(value, self._base)}
        except Unexpected as error:
            culprit = value if error.culprit is None else error.culprit
            self._report.add((*at, key), f"{error}, got {shown(culprit)}" if error.shown else str(error))
            return {}

    def models(self, raw: object) -> list[dict[str, Any]]:
        """The values of each `[[model]]` entry, as far as they are valid."""
        return [self._model(entry, path) for path, entry in self._named("model", raw)]

    def peers(self, raw: object) -> list[dict[str, Any]]:
        """The values of each `[[peer]]` entry, as far as they are valid."""
        return [self._peer(entry, path) for path, entry in self._named("peer", raw)]

    def _named(self, table: str, raw: object) -> list[tuple[KeyPath, object]]:
        """The entries of an array of tables, which go by their names."""
        entries = list(self._entries(raw, (table,), f"expected [[{table}]] entries"))
        for path, entry in entries:
            name = entry.get("name") if isinstance(entry, dict) else None
            if isinstance(name, str) and name:
                self._report.rename(path, name)
        return entries

    def _peer(self, raw: object, at: KeyPath) -> dict[str, Any]:
        self._require("name", raw, at)
        self._require("url", raw, at)
        return self.keys(raw, at, PEER_RULES)

    def _model(self, raw: object, at: KeyPath) -> dict[str, Any]:
        values = self.keys(raw, at, MODEL_RULES, MODEL_TABLES, _MODEL_ELSEWHERE)
        table = raw if isinstance(raw, dict) else {}
        self._require("name", raw, at)
        if "path" in table and "repo" in table:
            self._report.add((*at, "repo"), "expected either path or repo, not both")
        self._check_hosts(table, at)
        if "adapters" in table:
            values["adapters"] = self._adapters(table["adapters"], (*at, "adapters"))
        if "engine" in table:
            values["engine"] = self._overrides(table["engine"], (*at, "engine"))
        if "sampling" in table:
            values["sampling"] = self._sampling(table["sampling"], (*at, "sampling"))
        if "presets" in table:
            presets = self._entries(table["presets"], (*at, "presets"), "expected an array of tables")
            values["presets"] = tuple(self._preset(preset, path) for path, preset in presets)
        return values

    def _check_hosts(self, table: Mapping[str, Any], at: KeyPath) -> None:
        if "hosts" in table and "hostfile" in table:
            self._report.add((*at, "hostfile"), "expected either hosts or hostfile, not both")
        if isinstance(hosts := table.get("hosts"), list) and len(hosts) < FEWEST_HOSTS:
            self._report.add((*at, "hosts"), f"expected {FEWEST_HOSTS} hosts or more, got {len(hosts)}")
        for key in sorted(SHARD_RULES.keys() & table.keys()) if not HOST_RULES.keys() & table.keys() else ():
            self._report.add((*at, key), "expected only beside hosts or hostfile, without which it says nothing")

    def engine(self, raw: object) -> dict[str, Any]:
        """The valid values of [engine]."""
        at: KeyPath = ("engine",)
        for key in sorted(DRAFT_RULES.keys() & self._names(raw)):
            message = "expected only in the engine table of a [[model]] entry, because it is about one model"
            self._report.add((*at, key), message)
        return self.keys(raw, at, SECTIONS["engine"].rules, DRAFT_RULES, dotted_keys())

    def _adapters(self, raw: object, at: KeyPath) -> dict[str, Path]:
        found: dict[str, Path] = {}
        for name, folder in self._table(raw, at).items():
            if isinstance(folder, dict):
                self._report.add((*at, name), "expected a path, got a table; a name with a dot in it needs quotes")
            elif self._value(name, name, at, ADAPTER_NAME):
                found |= self._value(name, folder, at, ADAPTER_PATH)
        return found

    def _overrides(self, raw: object, at: KeyPath) -> dict[str, Any]:
        for key in sorted(WHOLE_DAEMON & self._names(raw)):
            self._report.add((*at, key), "expected only in [engine], because it holds for the whole daemon")
        return self.keys(raw, at, OVERRIDE_RULES, WHOLE_DAEMON)

    def _sampling(self, raw: object, at: KeyPath) -> SamplingSettings:
        return SamplingSettings(**self.keys(raw, at, SAMPLING_RULES))

    def _preset(self, raw: object, at: KeyPath) -> PresetSettings:
        values = {"name": ""} | self.keys(raw, at, PRESET_RULES, PRESET_TABLES)
        table = raw if isinstance(raw, dict) else {}
        self._require("name", raw, at)
        if "sampling" in table:
            values["sampling"] = self._sampling(table["sampling"], (*at, "sampling"))
        if "template" in table:
            values["template"] = self._template(table["template"], (*at, "template"))
        return PresetSettings(**values)

    def _template(self, raw: object, at: KeyPath) -> dict[str, Any]:
        table = self._table(raw, at)
        for key, value in table.items():
            if key in _TEMPLATE_TAKEN:
                self._report.add((*at, key), "expected an argument of the chat template; the daemon sets this one")
            elif not _is_plain(value):
                self._report.add((*at, key), f"expected strings, numbers, booleans, arrays or tables, got {value}")
        return table

    def _require(self, key: str, raw: object, at: KeyPath) -> None:
        if isinstance(raw, dict) and key not in raw:
            self._report.add((*at, key), f"expected a {key}, but there is none")

    def _entries(self, raw: object, at: KeyPath, expected: str) -> Iterator[tuple[KeyPath, object]]:
        if isinstance(raw, list):
            yield from (((*at, index), entry) for index, entry in enumerate(raw))
        else:
            self._report.add(at, f"{expected}, got {shown(raw)}")

    def _table(self, raw: object, at: KeyPath) -> dict[str, Any]:
        if isinstance(raw, dict):
            return raw
        self._report.add(at, f"expected a table, got {shown(raw)}")
        return {}

    def _names(self, raw: object) -> frozenset[str]:
        return frozenset(raw) if isinstance(raw, dict) else frozenset()


def note_repeated_peers(peers: list[dict[str, Any]], report: Report) -> None:
    """Note every peer whose name an earlier one has."""
    taken: set[str] = set()
    for index, values in enumerate(peers):
        name = values.get("name")
        if name in taken:
            report.add(("peer", index, "name"), f'expected a name of its own, but "{name}" is a peer already')
        taken.add(name or "")


def note_repeated_names(models: list[dict[str, Any]], report: Report) -> None:
    """Note every model name, alias and preset that something else is already called; they share one namespace."""
    taken: dict[str, str] = {}
    for at, name, what in sorted(_names(models), key=lambda item: item[2] != "a model"):
        if name in taken:
            report.add(at, f'expected a name of its own, but "{name}" is already {taken[name]}')
        taken.setdefault(name, what)


def _names(models: list[dict[str, Any]]) -> Iterator[tuple[KeyPath, str, str]]:
    for index, values in enumerate(models):
        owner = values.get("name")
        if owner:
            yield ("model", index, "name"), owner, "a model"
        for alias in values.get("aliases", ()):
            yield ("model", index, "aliases"), alias, f'an alias of "{owner}"'
        for adapter in values.get("adapters", ()):
            yield ("model", index, "adapters", adapter), adapter, f'an adapter of "{owner}"'
        for number, preset in enumerate(values.get("presets", ())):
            if preset.name:
                yield ("model", index, "presets", number, "name"), preset.name, f'a preset of "{owner}"'


def _is_plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(_is_plain(element) for element in value.values())
    if isinstance(value, list):
        return all(_is_plain(element) for element in value)
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, str | int | bool)
