"""The entry point: `mlxd`, or `python -m mlxd.daemon`."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import TextIO

import click

from mlxd.daemon.cli.failures import CommandFailed, Exit
from mlxd.daemon.cli.root import cli


def main() -> int:
    """Run one command; its exit code. An expected error is a message on standard error, never a traceback."""
    if sys.stdout is None:
        sys.stdout = _nowhere()
    if sys.stderr is None:
        sys.stderr = _nowhere()
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # a terminal that cannot show a character shows another one
            stream.reconfigure(errors="replace")
    try:
        return _outcome()
    except BrokenPipeError:
        # whoever read the output has seen enough
        return _drop_output(None)
    except OSError as error:
        reason = error.strerror or str(error)
        return _drop_output(CommandFailed(f"{error.filename}: {reason}" if error.filename else reason))


def _outcome() -> int:
    try:
        code = cli.main(prog_name="mlxd", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except click.Abort:
        CommandFailed("interrupted").show()
        code = Exit.FAILED
    sys.stdout.flush()
    return code if isinstance(code, int) else Exit.OK


def _nowhere() -> TextIO:
    """Takes the place of a stream that the caller closed."""
    return Path(os.devnull).open("w", encoding="utf-8")


def _drop_output(failure: CommandFailed | None) -> int:
    """Report, and send what is still buffered nowhere: the interpreter would fail on it again at exit."""
    if failure is not None:
        failure.show()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return Exit.FAILED


if __name__ == "__main__":
    sys.exit(main())
