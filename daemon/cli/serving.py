"""`mlxd serve`: the daemon in the foreground."""

# The daemon itself is imported last: a process that starts again for its BLAS has no use for it.
# ruff: noqa: PLC0415

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from mlxd.daemon.blas import BlasPlan, SystemBlas, plan_blas, reexec
from mlxd.daemon.cli.failures import BadConfig
from mlxd.daemon.config import ConfigError
from mlxd.daemon.config_source import ConfigSource
from mlxd.daemon.settings import LoadedConfig


@click.command(
    epilog="\b\nExample:\n  mlxd serve\n  mlxd serve --port 0 --models-dir ~/models\n"
    "  mlxd serve --config ./mlxd.toml --log-format json",
)
@click.option("--config", type=click.Path(path_type=Path), metavar="F", help="The configuration file.")
@click.option("--host", metavar="H", help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), metavar="N", help="The port; 0 takes any free one.")
@click.option("--models-dir", type=click.Path(path_type=Path), multiple=True, metavar="D", help="A folder of models.")
@click.option("--log-format", type=click.Choice(["console", "json"]), help="How log lines look.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="What is logged.")
def serve(
    *,
    config: Path | None,
    host: str | None,
    port: int | None,
    models_dir: tuple[Path, ...],
    log_format: str | None,
    log_level: str | None,
) -> int:
    """Run the daemon in the foreground.

    Flags win over environment variables, those over the configuration file. --models-dir may be given several times.
    One line `mlxd ready on URL` appears on standard output once requests are served; the log goes to standard error.
    """
    flags = {"host": host, "port": port, "models_dir": models_dir, "log_format": log_format, "log_level": log_level}
    try:
        source = ConfigSource(flags, dict(os.environ), config)
        loaded = source.load()
        blas = _preload_blas(loaded)
    except ConfigError as error:
        raise BadConfig(str(error)) from error

    from mlxd.daemon.serve import run

    return run(source, loaded, blas)


def _preload_blas(loaded: LoadedConfig) -> BlasPlan:
    """Start this process again if that makes MLX faster; it does not return then."""
    plan = plan_blas(loaded.settings, os.environ, sys.platform, SystemBlas())
    if not plan.reexec:
        return plan
    try:
        reexec(plan, sys.orig_argv)
    except OSError as error:
        note = f"could not start again with {plan.library}: {error.strerror}"
        return BlasPlan(None, False, note, slow=True)
