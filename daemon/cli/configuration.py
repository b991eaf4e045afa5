"""`mlxd config check` and `mlxd config show`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from mlxd.daemon.catalog import survey
from mlxd.daemon.cli.failures import BadConfig
from mlxd.daemon.cli.options import with_json
from mlxd.daemon.cli.output import Column, print_json, print_table
from mlxd.daemon.cli.plain import printable
from mlxd.daemon.config import ConfigError, describe, load_config, located, to_public
from mlxd.daemon.config_source import check_start
from mlxd.daemon.probe_choice import hf_cache_dir
from mlxd.daemon.settings import LoadedConfig

_COLUMNS = (Column("KEY", wraps=True), Column("VALUE", wraps=True), Column("FROM", wraps=True))


@click.group(epilog="\b\nExample:\n  mlxd config check mlxd.toml\n  mlxd config show")
def config() -> None:
    """Check or show the configuration."""


@config.command(epilog="\b\nExample:\n  mlxd config check\n  mlxd config check ./mlxd.toml")
@click.argument("file", required=False, type=click.Path(path_type=Path))
def check(file: Path | None) -> None:
    """Check a configuration file, by default the one that the daemon would read.

    Prints "ok", or every problem that it finds; the exit code is then 78. Notes tell what is odd about the models on
    this machine, such as names that clash.
    """
    loaded = _loaded(file)
    try:
        check_start(loaded.settings, os.environ)
    except ConfigError as error:
        raise BadConfig(str(located(error, loaded))) from error
    for note in _notes(loaded):
        click.echo(f"note: {printable(note)}", err=True)
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


def _notes(loaded: LoadedConfig) -> tuple[str, ...]:
    found = survey(loaded.settings, hf_cache_dir(os.environ))
    return (*map(str, located(ConfigError(*found.problems), loaded).problems), *found.catalog.remarks)


def _loaded(file: Path | None) -> LoadedConfig:
    try:
        return load_config({}, os.environ, file)
    except ConfigError as error:
        raise BadConfig(str(error)) from error
