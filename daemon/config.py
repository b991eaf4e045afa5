"""Finds, reads and checks the configuration; the only place that reads the environment's keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec import structs

from mlxd.daemon.config_env import Given, environment_values, flag_values
from mlxd.daemon.config_errors import ConfigError, Problem, Report, shown
from mlxd.daemon.config_file import parse, read_text
from mlxd.daemon.config_hosts import is_loopback
from mlxd.daemon.config_rules import Base, Unexpected, absolute
from mlxd.daemon.config_schema import SECTIONS, dotted_keys
from mlxd.daemon.config_show import describe, leaves, to_public
from mlxd.daemon.config_tables import TableReader, note_repeated_names, note_repeated_peers
from mlxd.daemon.settings import LoadedConfig, ModelSettings, PeerSettings, Settings

__all__ = ["ConfigError", "LoadedConfig", "Problem", "check_bind", "describe", "load_config", "located", "to_public"]

_USER_FILE = ".config/mlxd/mlxd.toml"
_MACHINE_FILE = Path("/etc/mlxd/mlxd.toml")

Values = dict[str, dict[str, Any]]


@dataclass
class Entries:
    """The values of each entry in an array of tables, as far as they are valid."""

    models: list[dict[str, Any]] = field(default_factory=list)
    peers: list[dict[str, Any]] = field(default_factory=list)


def load_config(flags: Mapping[str, object], environ: Mapping[str, str], path: Path | None) -> LoadedConfig:
    """Read flags, environment and file into settings; `path` is the file that `--config` names.

    Flags go by the names in `config_env.FLAGS`, or by dotted keys. Raises ConfigError with all problems.
    """
    here = Base(_home(environ), Path.cwd())
    found, text = _find_file(path, environ, here)
    values: Values = {name: {} for name in SECTIONS}
    origins = dict.fromkeys(dotted_keys(), "default")
    report, entries = Report(None), Entries()
    if found:
        document, lines = parse(found, text)
        report = Report(str(found), lines)
        entries = _read_document(document, TableReader(report, Base(here.home, found.parent)), values, report)
        origins |= _file_origins(document)
    given, problems = environment_values(environ)
    for item in [*given, *flag_values(flags)]:
        problems += _take(item, values, origins, here)
    problems = sorted(report.problems, key=lambda problem: problem.line or 0) + problems
    if problems:
        raise ConfigError(*problems)
    settings = _settings(values, entries, here)
    _check_limits(settings, origins, report)
    return LoadedConfig(settings, found, _with_inherited(origins, settings), report.lines())


def located(error: ConfigError, loaded: LoadedConfig) -> ConfigError:
    """The same problems, with the file and line, flag or variable of each that has only a key."""
    return ConfigError(*(_placed(problem, loaded) for problem in error.problems))


def _placed(problem: Problem, loaded: LoadedConfig) -> Problem:
    if problem.key is None or problem.source is not None:
        return problem
    origin = loaded.origins.get(problem.key, "")
    if origin.startswith(("flag", "environment")):
        return structs.replace(problem, source=origin)
    if loaded.path is None or problem.key not in loaded.lines:
        return problem
    return structs.replace(problem, source=str(loaded.path), line=loaded.lines[problem.key])


def check_bind(settings: Settings, has_keys: bool) -> None:
    """Raise ConfigError if other machines could reach a daemon that asks nobody for a key."""
    host = settings.server.host
    if has_keys or is_loopback(host):
        return
    message = (
        f'other machines can reach "{host}", but {settings.auth.keys_file} has no API key that they would '
        "need; make one with `mlxd key add`, or listen on 127.0.0.1"
    )
    raise ConfigError(Problem(message, "server.host"))


def _home(environ: Mapping[str, str]) -> Path:
    if home := environ.get("HOME"):
        return Path(home)
    try:
        return Path.home()
    except RuntimeError:
        raise ConfigError(Problem("expected $HOME to name the home folder")) from None


def _find_file(path: Path | None, environ: Mapping[str, str], here: Base) -> tuple[Path | None, str]:
    """The file that counts, and its text: the named one, else the first standard one that exists."""
    variable = environ.get("MLXD_CONFIG", "")
    if path is not None or variable:
        by = "--config" if path is not None else "$MLXD_CONFIG"
        named = _named(str(path) if path is not None else variable, by, here)
        text = read_text(named)
        if text is None:
            raise ConfigError(Problem(f"expected a file, named by {by}, but there is none", source=str(named)))
        return named, text
    for standard in (here.home / _USER_FILE, _MACHINE_FILE):
        text = read_text(standard)
        if text is not None:
            return standard, text
    return None, ""


def _named(written: str, by: str, here: Base) -> Path:
    try:
        return absolute(written, here)
    except Unexpected as error:
        raise ConfigError(Problem(f"{error}, got {shown(written)}", by)) from None


def _read_document(document: dict[str, Any], reader: TableReader, values: Values, report: Report) -> Entries:
    entries = Entries()
    for name, raw in document.items():
        if name == "model":
            entries.models = reader.models(raw)
        elif name == "peer":
            entries.peers = reader.peers(raw)
        elif name == "engine":
            values[name] = reader.engine(raw)
        elif name in SECTIONS:
            values[name] = reader.keys(raw, (name,), SECTIONS[name].rules, elsewhere=dotted_keys())
        else:
            report.unknown((name,), [*SECTIONS, "model", "peer"], dotted_keys())
    note_repeated_names(entries.models, report)
    note_repeated_peers(entries.peers, report)
    return entries


def _file_origins(document: dict[str, Any]) -> dict[str, str]:
    return {key: "file" for key, _ in leaves(document)}


def _take(given: Given, values: Values, origins: dict[str, str], base: Base) -> list[Problem]:
    section, _, key = given.key.partition(".")
    try:
        values[section][key] = SECTIONS[section].rules[key].read(given.value, base)
    except Unexpected as error:
        culprit = given.value if error.culprit is None else error.culprit
        return [Problem(f"{error}, got {shown(culprit)}", given.key, given.origin)]
    origins[given.key] = given.origin
    return []


def _settings(values: Values, entries: Entries, base: Base) -> Settings:
    sections: dict[str, Any] = {}
    for name, table in SECTIONS.items():
        home = {key: table.rules[key].read(raw, base) for key, raw in table.home_defaults.items()}
        sections[name] = table.kind(**(home | values[name]))
    ttl = sections["models"].ttl
    models = tuple(ModelSettings(**({"ttl": ttl} | entry)) for entry in entries.models)
    return Settings(**sections, model=models, peer=tuple(PeerSettings(**entry) for entry in entries.peers))


def _check_limits(settings: Settings, origins: Mapping[str, str], report: Report) -> None:
    ceiling, soft = settings.memory.ceiling, settings.memory.soft
    if ceiling == "auto" or ceiling.bytes is None or soft.bytes is None or soft.bytes <= ceiling.bytes:
        return
    message = f"expected at most memory.ceiling ({ceiling}), got {soft}"
    if origins["memory.soft"] == "file":
        report.add(("memory", "soft"), message)
        raise ConfigError(*report.problems)
    raise ConfigError(Problem(message, "memory.soft", origins["memory.soft"]))


def _with_inherited(origins: dict[str, str], settings: Settings) -> dict[str, str]:
    shown_keys = [key for key, _ in leaves(to_public(settings))]
    inherited = {key: "models.ttl" if key.endswith(".ttl") else "default" for key in shown_keys}
    return inherited | origins
