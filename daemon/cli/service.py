"""`mlxd service`: the daemon as a service of this user, under launchd or systemd."""

# What installs a service is imported when it is asked for.
# ruff: noqa: PLC0415

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mlxd.daemon.cli.failures import BadConfig, CommandFailed, Exit
from mlxd.daemon.cli.options import with_json, with_url
from mlxd.daemon.units import Size, parse_size

if TYPE_CHECKING:
    from mlxd.daemon.service.state import ServiceManager


class StateDirTaken(CommandFailed):
    """The daemon did not start: another one works in its state directory."""

    exit_code = Exit.STATE_DIR_BUSY


class AddressTaken(CommandFailed):
    """The daemon did not start: its address is in use."""

    exit_code = Exit.ADDRESS_IN_USE


_PASSED_ON: Mapping[int | None, type[CommandFailed]] = {
    Exit.STATE_DIR_BUSY: StateDirTaken,
    Exit.ADDRESS_IN_USE: AddressTaken,
    Exit.BAD_CONFIG: BadConfig,
}


def _checked_size(_ctx: click.Context, _param: click.Parameter, value: str | None) -> Size | None:
    if value is None:
        return None
    try:
        return parse_size(value)
    except ValueError as error:
        raise click.BadParameter(f"{error}, got {value!r}") from error


@click.group(epilog="\b\nExample:\n  mlxd service install\n  mlxd service status\n  mlxd service uninstall")
def service() -> None:
    """Run the daemon as a service of this user.

    It is a launchd agent on macOS and a systemd user unit on Linux. It starts when you log in, and again after a crash.
    """


@service.command(
    epilog="\b\nExample:\n  mlxd service install\n  mlxd service install --config ~/mlxd.toml --memory-max 24GiB"
)
@click.option("--config", type=click.Path(path_type=Path), metavar="F", help="The configuration file of the service.")
@click.option("--memory-max", metavar="SIZE", callback=_checked_size, help="What it may use, workers included (Linux).")
@click.option("--no-start", is_flag=True, help="Do not start it now.")
def install(config: Path | None, memory_max: Size | None, no_start: bool) -> None:
    """Write the service file, and start the daemon now and at each login.

    May be done again at any time, as after a change of timeouts or of the installation. The exit code is 78 when the
    configuration is invalid, and that of the daemon when it does not start for a reason that a new try does not change.
    """
    from mlxd.daemon.cli.service_plan import plan_of
    from mlxd.daemon.cli.service_status import answering
    from mlxd.daemon.service.files import Change
    from mlxd.daemon.service.operations import install as put
    from mlxd.daemon.service.operations import start as begin

    planned = plan_of(config, os.environ, memory_max)
    with _failures() as manager:
        change = put(manager, planned.plan, _tell)
        running = manager.state().running
        if running and change is Change.REPLACED:
            _tell("the daemon that runs has not seen the new file: `mlxd service stop`, then `mlxd service start`")
        elif not no_start:
            begin(manager, partial(answering, planned.url), time.sleep, _tell)
        _tell(f"the log: {manager.log_hint}")
        for note in (*planned.notes, *manager.notes()):
            _tell(f"note: {note}")


@service.command(epilog="\b\nExample:\n  mlxd service uninstall")
def uninstall() -> None:
    """Stop the daemon and remove the service file.

    Configuration, API keys, models and logs stay.
    """
    from mlxd.daemon.service.operations import uninstall as remove

    with _failures() as manager:
        remove(manager, _tell)


@service.command(epilog="\b\nExample:\n  mlxd service start")
@with_url
def start(url: str | None) -> None:
    """Start the installed service and wait until it serves.

    The exit code is the daemon's when it does not start for a reason that a new try does not change.
    """
    from mlxd.daemon.cli.service_status import answering, find_url
    from mlxd.daemon.service.operations import start as begin

    with _failures() as manager:
        begin(manager, lambda: answering(find_url(url).url), time.sleep, _tell)


@service.command(epilog="\b\nExample:\n  mlxd service stop")
def stop() -> None:
    """Stop the service and wait for its end.

    Running requests are finished first, within server.drain_timeout. It starts again with the next login.
    """
    from mlxd.daemon.service.operations import stop as end

    with _failures() as manager:
        end(manager, _tell)


@service.command(epilog="\b\nExample:\n  mlxd service status\n  mlxd service status --json | jq .pid")
@with_json
@with_url
def status(url: str | None, as_json: bool) -> int:
    """Show whether the service is installed and running, and what the daemon says.

    The exit code is 1 unless it is installed and running.
    """
    from mlxd.daemon.cli.service_status import find_url, look, print_page

    with _failures() as manager:
        page = look(manager, find_url(url))
    print_page(page, as_json=as_json)
    return Exit.OK if page.state.installed and page.state.running else Exit.FAILED


def _tell(line: str) -> None:
    click.echo(line, err=True)


@contextmanager
def _failures() -> Iterator[ServiceManager]:
    """The manager of this machine; what goes wrong with it becomes a failure of the command."""
    from mlxd.daemon.service.choice import manager_of
    from mlxd.daemon.service.failures import ServiceFailed, StartFailed
    from mlxd.daemon.service.tools import run_tool

    try:
        yield manager_of(sys.platform, os.environ, os.getuid(), run_tool)
    except StartFailed as error:
        code = error.last_exit.code if error.last_exit is not None else None
        raise _PASSED_ON.get(code, CommandFailed)(str(error)) from error
    except ServiceFailed as error:
        raise CommandFailed(str(error)) from error
