"""The values that flags and environment variables give to keys."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from pathlib import Path

from msgspec import Struct

from mlxd.daemon.config_errors import Problem
from mlxd.daemon.config_schema import DRAFT_RULES, dotted_keys

PREFIX = "MLXD_"
FLAGS: Mapping[str, str] = {
    "host": "server.host",
    "port": "server.port",
    "models_dir": "models.dirs",
    "log_format": "log.format",
    "log_level": "log.level",
}
"""The flags of `serve` that set a key, as the names of their parameters."""


class Given(Struct, frozen=True):
    """A value for a dotted key, as it was written, and where."""

    key: str
    value: object
    origin: str


def variable(key: str) -> str:
    """The environment variable for a dotted key."""
    return PREFIX + key.replace(".", "__").upper()


def environment_values(environ: Mapping[str, str]) -> tuple[list[Given], list[Problem]]:
    """What variables such as `MLXD_SERVER__PORT` set; those that set no key are problems.

    Without a double underscore a name is somebody else's, unless it is a key's name but for that.
    """
    keys = dotted_keys()
    variables = {variable(key): key for key in keys}
    of_one_model = {variable(f"engine.{key}"): key for key in DRAFT_RULES}
    single = {name.replace("__", "_"): name for name in variables}
    given, problems = [], []
    for name in sorted(environ):
        origin = f"environment {name}"
        if name in variables:
            key = variables[name]
            given.append(Given(key, keys[key].from_text(environ[name]), origin))
        elif name in of_one_model:
            key = of_one_model[name]
            message = f"{key} is about one model; set engine.{key} in its [[model]] entry of the configuration file"
            problems.append(Problem(message, source=origin))
        elif name in single:
            problems.append(Problem(f"unknown variable; did you mean {single[name]}?", source=origin))
        elif name.startswith(PREFIX) and "__" in name:
            problems.append(Problem(f"unknown variable; did you mean {_nearest(name, variables)}?", source=origin))
    return given, problems


def _nearest(name: str, variables: Collection[str]) -> str:
    [nearest] = difflib.get_close_matches(name.upper(), variables, n=1, cutoff=0.0)
    return nearest


def flag_values(flags: Mapping[str, object]) -> list[Given]:
    """What flags set, by parameter name or by dotted key; None and empty are not given.

    Raises KeyError for a name that is neither.
    """
    options = {key: name.replace("_", "-") for name, key in FLAGS.items()}
    given = []
    for name, value in flags.items():
        key = FLAGS.get(name, name)
        if key not in dotted_keys():
            raise KeyError(name)
        if value is not None and value not in ((), []):
            given.append(Given(key, _as_written(value), f"flag --{options.get(key, key)}"))
    return given


def _as_written(value: object) -> object:
    if isinstance(value, list | tuple):
        return [_as_written(element) for element in value]
    return str(value) if isinstance(value, Path) else value
