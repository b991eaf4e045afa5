"""`mlxd serve`: the daemon in the foreground."""

# What starts it is imported once a SIGHUP can no longer end the process.
# ruff: noqa: PLC0415

from __future__ import annotations

import signal
from pathlib import Path

import click

from mlxd.daemon.cli.lean_start import lean_start


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
    # until the daemon can reload
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    flags = {"host": host, "port": port, "models_dir": models_dir, "log_format": log_format, "log_level": log_level}

    with lean_start():
        from mlxd.daemon.cli.starting import configure

        begin = configure(flags, config)
    return begin()
