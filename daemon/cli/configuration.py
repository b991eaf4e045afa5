"""`mlxd config check` and `mlxd config show`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from mlxd.daemon.blas import SystemBlas, plan_blas
from mlxd.daemon.cli.failures import BadConfig
from mlxd.daemon.cli.options import with_json
from mlxd.daemon.cli.output import Column, print_json, print_table
from mlxd.daemon.config import ConfigError, check_bind, describe, load_config, to_public
from mlxd.daemon.settings import LoadedConfig
from mlxd.daemon.unavailable import refuse_unavailable

_COLUMNS = (Column("KEY", wraps=True), Column("VALUE", wraps=True), Column("FROM", wraps=True))


@click.group(epilog="\b\nExample:\n  mlxd config check mlxd.toml\n  mlxd config show")
def config() -> None:
    """Check or show the configuration."""


@config.command(epilog="\b\nExample:\n  mlxd config check\n  mlxd config check ./mlxd.toml")
@click.argument("file", required=False, type=click.Path(path_type=Path))
def check(file: Path | None) -> None:
    """Check a configuration file, by default the one that the daemon would read.

    Prints "ok", or every problem that it finds; the exit code is then 78.
    """
    loaded = _loaded(file)
    try:
        refuse_unavailable(loaded.settings)
        check_bind(loaded.settings, has_keys=False)
        plan_blas(loaded.settings, os.environ, sys.platform, SystemBlas())
    except ConfigError as error:
        raise BadConfig(str(error)) from error
    click.echo("ok")


@config.command(epilog="\b\nExample:\n  mlxd config show\n  mlxd config show --json | jq .settings.server")
@with_json
def show(as_json: bool) -> None:
    """Show the effective values and where each came from."""
    loaded = _loaded(None)
    if as_json:
        path = str(loaded.path) if loaded.path is not None else None
        print_json({"path": path, "settings": to_public(loaded.settings), "origins": dict(loaded.origins)})
        return
    click.echo(f"# {loaded.path or 'no configuration file'}", err=True)
    print_table(_COLUMNS, describe(loaded))


def _loaded(file: Path | None) -> LoadedConfig:
    try:
        return load_config({}, os.environ, file)
    except ConfigError as error:
        raise BadConfig(str(error)) from error
