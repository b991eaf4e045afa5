"""`mlxd import`: a GGUF file becomes a model folder."""

# The converter imports MLX, which nothing else on the command line does.
# ruff: noqa: PLC0415

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import click

from mlxd.daemon.cli.failures import BadConfig, CommandFailed
from mlxd.daemon.cli.options import checked_text
from mlxd.daemon.cli.plain import one_line
from mlxd.daemon.config import ConfigError, load_config
from mlxd.daemon.model_name import name_complaint
from mlxd.daemon.units import format_bytes
from mlxd.engines.gguf_errors import GgufError

if TYPE_CHECKING:
    from mlxd.engines.gguf import ImportReport

_CLEAR_LINE = "\r\x1b[K"


@click.command(
    "import",
    epilog="\b\nExample:\n  mlxd import ~/Downloads/tiny.gguf --name tiny\n"
    "  mlxd import big.gguf --name org/big --quantize 4",
)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, readable=True, path_type=Path))
@click.option("--name", required=True, callback=checked_text, metavar="N", help="The model's name: NAME or ORG/NAME.")
@click.option(
    "--quantize",
    type=click.Choice(["4", "8", "none"]),
    default="none",
    show_default=True,
    help="Bits per weight; none keeps full precision, which takes most memory.",
)
@click.option(
    "--models-dir",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="D",
    help="Where to put the model [default: the first of models.dirs].",
)
def import_model(file: Path, name: str, quantize: str, models_dir: Path | None) -> None:
    """Turn a GGUF file into an MLX model folder.

    FILE may also be a .zip or .whl archive with one GGUF file in it. Nothing is left behind if it fails.
    """
    complaint = name_complaint(name)
    if complaint:
        raise click.BadParameter(f"{complaint}, got {name!r}", param_hint="--name")
    configured = _configured_dirs(required=models_dir is None)
    folder = models_dir if models_dir is not None else configured[0]
    target = folder / name
    _check_target(folder, name)
    report = _convert(file, target, cast(Literal["4", "8", "none"], quantize))
    click.echo(f"made {name} in {report.path}")
    click.echo(_described(report))
    if not report.has_chat_template:
        click.echo("it has no chat template, so it completes text but does not chat")
    if folder.resolve() not in [known.resolve() for known in configured]:
        click.echo(f"serve it:  mlxd serve --models-dir {shlex.quote(str(folder))}")
    click.echo(f"run it:    mlxd run {shlex.quote(name)}  (a daemon that runs sees it within seconds)")


def _configured_dirs(*, required: bool) -> tuple[Path, ...]:
    try:
        dirs = load_config({}, os.environ, None).settings.models.dirs
    except ConfigError as error:
        raise BadConfig(str(error)) from error
    if required and not dirs:
        raise CommandFailed("models.dirs is empty; say where to put the model with --models-dir")
    return dirs


def _check_target(folder: Path, name: str) -> None:
    target = folder / name
    if os.path.lexists(target):
        raise CommandFailed(f"{target} exists already; choose another --name or remove it first")
    if os.path.lexists(target.parent / "config.json"):
        raise CommandFailed(f"{target.parent} is a model itself, a model inside it would not be found; choose another")


def _convert(file: Path, target: Path, quantize: Literal["4", "8", "none"]) -> ImportReport:
    try:
        from mlxd.engines.gguf import import_gguf
    except ImportError as error:
        raise CommandFailed(f"MLX cannot be imported: {error}; on Linux install mlxd[cpu] or mlxd[cuda]") from error

    shown = sys.stderr.isatty()
    try:
        return import_gguf(file, target, quantize, _show_progress if shown else _ignore_progress)
    except GgufError as error:
        raise CommandFailed(str(error)) from error
    except OSError as error:
        raise CommandFailed(f"{error.filename or target}: {error.strerror or error}") from error
    finally:
        if shown:
            sys.stderr.write(_CLEAR_LINE)


def _show_progress(line: str) -> None:
    sys.stderr.write(_CLEAR_LINE + one_line(line, shutil.get_terminal_size().columns - 1))
    sys.stderr.flush()


def _ignore_progress(_line: str) -> None:
    return


def _described(report: ImportReport) -> str:
    precision = f"{report.bits} bits" if report.bits else report.dtype
    return (
        f"{report.architecture}, {report.parameters / 1e6:.0f} M parameters, {precision}, "
        f"{format_bytes(report.weight_bytes)}, context of {report.context_length} tokens"
    )
