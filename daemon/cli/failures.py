"""How a command ends when it cannot do what was asked: a message for people and an exit code."""

from __future__ import annotations

import enum
from typing import IO, Any

import click

from mlxd.daemon.cli.plain import printable


class Exit(enum.IntEnum):
    """The exit codes of `mlxd`, from sysexits.h where it has one."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_REACHABLE = 69
    STATE_DIR_BUSY = 75
    ADDRESS_IN_USE = 76
    BAD_CONFIG = 78


class CommandFailed(click.ClickException):
    """The command failed; every line of the message goes to standard error as `mlxd: line`."""

    exit_code = Exit.FAILED

    def show(self, file: IO[Any] | None = None) -> None:
        """Write the message to `file`, by default to standard error."""
        for line in self.message.splitlines():
            click.echo(f"mlxd: {printable(line)}", file=file, err=file is None)


class NotReachable(CommandFailed):
    """No daemon answers at the address."""

    exit_code = Exit.NOT_REACHABLE


class ConnectionLost(CommandFailed):
    """The daemon was there, and the connection ended before its answer did."""


class BadConfig(CommandFailed):
    """The configuration is invalid."""

    exit_code = Exit.BAD_CONFIG


class ApiFailure(CommandFailed):
    """The daemon refused, with its own message; `code` is the API's name for the reason."""

    def __init__(self, message: str, status: int, code: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
