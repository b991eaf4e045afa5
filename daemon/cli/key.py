"""`mlxd key add`, `mlxd key list` and `mlxd key rm`: the file of API keys, which a running daemon follows."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from mlxd.daemon.cli.failures import BadConfig, CommandFailed
from mlxd.daemon.cli.options import with_json
from mlxd.daemon.cli.output import Column, print_json, print_table
from mlxd.daemon.config import load_config
from mlxd.daemon.config_errors import ConfigError
from mlxd.daemon.keys import (
    ApiKey,
    Scope,
    hash_of,
    key_name_complaint,
    new_secret,
    pattern_complaint,
)
from mlxd.daemon.keys_file import KeyNameTaken, NoSuchKey, TooManyKeys, add_key, read_keys, remove_key

_Command = TypeVar("_Command", bound=Callable[..., Any])
_COLUMNS = (Column("NAME", wraps=True), Column("SCOPES"), Column("MODELS", wraps=True), Column("CREATED"))


def _with_config(command: _Command) -> _Command:
    explanation = "The configuration file that the daemon has; it says where the keys are."
    return click.option("--config", type=click.Path(path_type=Path), metavar="F", help=explanation)(command)


def _checked(complain: Callable[[str], str | None]) -> Callable[[Any, Any, Any], Any]:
    """A check of an argument, or of each value of an option."""

    def check(_ctx: click.Context, _param: click.Parameter, value: Any) -> Any:
        for each in (value,) if isinstance(value, str) else value:
            if complaint := complain(each):
                raise click.BadParameter(f"{complaint}, got {each!r}")
        return value

    return check


@click.group(epilog="\b\nExample:\n  mlxd key add laptop --scope infer\n  mlxd key list\n  mlxd key rm laptop")
def key() -> None:
    """Make, list and remove API keys.

    While there is no key, nobody needs one and only this machine is served. With the first one every call needs a key
    with the right scope. A running daemon notices a change within seconds.
    """


@key.command(
    epilog="\b\nExample:\n  mlxd key add laptop --scope infer\n  mlxd key add ci --scope infer --models 'qwen*'"
    "\n  export MLXD_API_KEY=$(mlxd key add me --scope admin)",
)
@click.argument("name", callback=_checked(key_name_complaint))
@click.option(
    "--scope",
    "scopes",
    type=click.Choice([scope.value for scope in Scope]),
    multiple=True,
    required=True,
    help="What it may do: use models, read the state, or all of that and change it. May be given several times.",
)
@click.option(
    "--models",
    "patterns",
    multiple=True,
    metavar="GLOB",
    callback=_checked(pattern_complaint),
    help="The models that it may use, such as 'qwen*'; may be given several times [default: all].",
)
@_with_config
def add(name: str, scopes: Sequence[str], patterns: Sequence[str], config: Path | None) -> None:
    """Make a key and print its secret, which is shown this once: only a hash of it is kept."""
    secret = new_secret()
    granted = tuple(scope for scope in Scope if scope in scopes)
    made = ApiKey(
        name, granted, hash_of(secret), datetime.now(UTC).replace(microsecond=0), tuple(dict.fromkeys(patterns))
    )
    with _failures(config) as file:
        keys = add_key(file, made)
    click.echo(secret)
    click.echo(f"key {name} is in {file}; its secret is not shown again", err=True)
    if not any(each.has(Scope.ADMIN) for each in keys):
        click.echo("note: no key has the scope admin, which commands such as `mlxd load` need", err=True)


@key.command("list", epilog="\b\nExample:\n  mlxd key list\n  mlxd key list --json | jq -r '.data[].name'")
@with_json
@_with_config
def list_keys(as_json: bool, config: Path | None) -> None:
    """List all keys, without their secrets."""
    with _failures(config) as file:
        keys = read_keys(file)
    if as_json:
        print_json({"data": [_public(each) for each in keys]})
    elif not keys:
        click.echo(f"there is no key in {file}; `mlxd key add --help` tells how to make one", err=True)
    else:
        print_table(_COLUMNS, [_row(each) for each in keys])


@key.command(epilog="\b\nExample:\n  mlxd key rm laptop")
@click.argument("name")
@_with_config
def rm(name: str, config: Path | None) -> None:
    """Remove a key: what comes with it is refused from then on. Requests that run go on."""
    with _failures(config) as file:
        near = difflib.get_close_matches(name, [each.name for each in read_keys(file)], n=1)
        try:
            left = remove_key(file, name)
        except NoSuchKey:
            guess = f"; did you mean {near[0]}?" if near and near[0] != name else ""
            raise CommandFailed(f"there is no key {name!r} in {file}{guess}") from None
    click.echo(f"key {name} is removed", err=True)
    if not left:
        message = (
            "note: it was the last one: a running daemon refuses every call until there is a key, or it is restarted"
        )
        click.echo(message, err=True)


@contextmanager
def _failures(config: Path | None) -> Iterator[Path]:
    """The file of keys; what can be wrong with it, or with the configuration, becomes a failure of the command."""
    try:
        yield load_config({}, os.environ, config).settings.auth.keys_file
    except ConfigError as error:
        raise BadConfig(str(error)) from error
    except TooManyKeys as error:
        raise CommandFailed(str(error)) from error
    except KeyNameTaken as error:
        raise CommandFailed(f"there is a key {error} already; remove it first with `mlxd key rm {error}`") from error


def _row(each: ApiKey) -> tuple[str, ...]:
    created = each.created.astimezone().strftime("%Y-%m-%d %H:%M")
    return each.name, ", ".join(each.scopes), ", ".join(each.models) or "all", created


def _public(each: ApiKey) -> dict[str, Any]:
    created = each.created.isoformat()
    return {"name": each.name, "scopes": list(each.scopes), "models": list(each.models) or None, "created": created}
