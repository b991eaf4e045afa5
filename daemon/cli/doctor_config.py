"""The configuration as `mlxd doctor` sees it: where it is from, and everything that is wrong with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from mlxd.daemon.cli.doctor_checks import Check, Group
from mlxd.daemon.config import load_config, located
from mlxd.daemon.config_errors import ConfigError, Problem
from mlxd.daemon.keys_file import read_keys
from mlxd.daemon.settings import LoadedConfig
from mlxd.daemon.unavailable import refuse_unavailable

GROUP = Group("config")


@dataclass(frozen=True, slots=True)
class Configured:
    """The configuration, None where it cannot be used, and what there is to say about it."""

    loaded: LoadedConfig | None
    checks: tuple[Check, ...]


def read_config(file: Path | None, environ: Mapping[str, str]) -> Configured:
    """Read what `mlxd serve --config file` would; nothing that is wrong with it makes this raise."""
    try:
        loaded = load_config({}, environ, file)
    except ConfigError as error:
        checks = (*(config_problem(GROUP, "values", problem) for problem in error.problems), _not_checked())
        return Configured(None, checks)
    except OSError as error:  # the current folder is gone, to which a path may be relative
        problem = GROUP.problem("values", f"it cannot be read: {error}", "run this in a folder that exists")
        return Configured(None, (problem, _not_checked()))
    try:
        refuse_unavailable(loaded.settings)
        read_keys(loaded.settings.auth.keys_file)
    except ConfigError as error:
        refused = located(error, loaded).problems
        return Configured(loaded, (_source(loaded), *(config_problem(GROUP, "values", problem) for problem in refused)))
    return Configured(loaded, (_source(loaded), _values(loaded)))


def config_problem(group: Group, name: str, problem: Problem) -> Check:
    """One thing that is wrong with the configuration, and where to correct it."""
    details = {"file": problem.source, "line": problem.line, "key": problem.key}
    return group.problem(name, str(problem), _where_to_correct(problem), **details)


def _where_to_correct(problem: Problem) -> str:
    if problem.line is not None:
        return f"correct line {problem.line} of {problem.source}"
    if problem.source is not None:
        return f"correct {problem.source}"
    return f"see to {problem.key}" if problem.key is not None else "see to it"


def _not_checked() -> Check:
    found = "what depends on the configuration was not checked: memory limits, address, state directory and models"
    return GROUP.warning("rest", found, "correct the configuration, then run this again")


def _source(loaded: LoadedConfig) -> Check:
    found = f"read from {loaded.path}" if loaded.path is not None else "there is no file; the defaults hold"
    return GROUP.ok("file", found, path=None if loaded.path is None else str(loaded.path))


def _values(loaded: LoadedConfig) -> Check:
    """How many values are not the defaults, by where they are from."""
    given = _counted(origin.partition(" ")[0] for origin in loaded.origins.values())
    parts = [f"{count} from the {origin}" for origin, count in given.items()]
    return GROUP.ok("values", f"valid, {', '.join(parts)}" if parts else "valid, all of them defaults", **given)


def _counted(origins: Iterable[str]) -> dict[str, int]:
    found = list(origins)
    return {origin: count for origin in ("file", "environment") if (count := found.count(origin))}
