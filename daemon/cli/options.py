"""Parameters that several commands share, and the checks of their values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from mlxd.daemon.cli.completion import model_names
from mlxd.daemon.units import parse_duration

_Command = TypeVar("_Command", bound=Callable[..., Any])


def checked_text(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    """Refuse nothing at all, and bytes that are not UTF-8, which Python hands over as lone surrogates."""
    if value is None:
        return None
    if not value.strip():
        raise click.BadParameter("expected text, got nothing")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise click.BadParameter("expected UTF-8 text") from error
    return value


def checked_duration(_ctx: click.Context, _param: click.Parameter, value: str | None) -> float | str | None:
    """The duration as the API reads it: seconds, or "never"."""
    if value is None:
        return None
    try:
        seconds = parse_duration(value)
    except ValueError as error:
        raise click.BadParameter(f"{error}, got {value!r}") from error
    return "never" if seconds is None else seconds


def checked_timeout(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """A duration in seconds that has an end."""
    duration = checked_duration(ctx, param, value)
    if isinstance(duration, str):
        raise click.BadParameter(f"expected a duration with an end, got {value!r}")
    return duration


def with_model(command: _Command) -> _Command:
    """Add the argument MODEL."""
    return click.argument("model", callback=checked_text, shell_complete=model_names)(command)


def with_url(command: _Command) -> _Command:
    """Add --url, which finds the daemon."""
    explanation = "The daemon's address [default: from the configuration]."
    return click.option("--url", envvar="MLXD_URL", show_envvar=True, metavar="URL", help=explanation)(command)


def with_json(command: _Command) -> _Command:
    """Add --json."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead.")(command)
