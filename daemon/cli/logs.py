"""`mlxd logs`: the last lines of the daemon's log, and those that come."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, get_args

import click

from mlxd.daemon.cli.address import find_daemon
from mlxd.daemon.cli.answers import view
from mlxd.daemon.cli.client import DaemonClient
from mlxd.daemon.cli.following import show_stream
from mlxd.daemon.cli.options import with_json, with_url
from mlxd.daemon.cli.plain import json_text, printable
from mlxd.daemon.settings import LogLevel

MAX_LINES = 5000

_COLORS = {"warning": "yellow", "error": "red", "critical": "red"}
# These have a place of their own in a line, or are the reader's affair.
_PLACED = frozenset({"seq", "timestamp", "level", "event", "logger", "exception"})

Line = dict[str, Any]


@click.command(
    epilog="\b\nExample:\n  mlxd logs\n  mlxd logs --follow --level warning\n  mlxd logs -n 1000 --json | jq .event"
)
@click.option("-f", "--follow", is_flag=True, help="Show also what is logged from now on, until Ctrl-C.")
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(1, MAX_LINES),
    default=100,
    show_default=True,
    help="How many of the last lines.",
)
@click.option(
    "--level",
    type=click.Choice(get_args(LogLevel)),
    default="debug",
    help="Lines of this level and above [default: all].",
)
@with_json
@with_url
def logs(follow: bool, lines: int, level: str, url: str | None, as_json: bool) -> None:
    """Show the last lines of the daemon's log.

    The daemon keeps some thousand lines; older ones are where the log is written to: the terminal, `log.file` or the
    service's journal. With --json each line is one object.
    """
    with suppress(KeyboardInterrupt):
        asyncio.run(_show(url, lines, level, follow=follow, as_json=as_json))


async def _show(url: str | None, lines: int, level: str, *, follow: bool, as_json: bool) -> None:
    async with DaemonClient(find_daemon(url)) as client:
        answer = await client.get(f"/admin/logs?limit={lines}&level={level}")
    show = _show_json if as_json else _show_text
    found = view(answer, dict[str, list[Line]]).get("data", [])
    for line in found:
        show(line)
    if follow:
        seen = int(found[-1]["seq"]) if found else None
        await show_stream(url, f"/admin/logs?follow=true&level={level}", lambda _, line: show(line), seen)


def _show_json(line: Line) -> None:
    click.echo(json_text(line))


def _show_text(line: Line) -> None:
    level, event = str(line.get("level", "")), printable(str(line.get("event", "")))
    fields = " ".join(f"{name}={_shown(value)}" for name, value in line.items() if name not in _PLACED)
    head = f"{_when(line)}  {click.style(f'{level:8}', fg=_COLORS.get(level))} {click.style(event, bold=True)}"
    click.echo(f"{head}  {printable(fields)}".rstrip())
    exception = line.get("exception") or ()
    for trace in (exception,) if isinstance(exception, str) else exception:
        click.echo(printable(f"    {_raised(trace)}"))


def _raised(trace: Any) -> str:
    """The last place of an exception in a traceback, and what it says."""
    if not isinstance(trace, dict):
        return str(trace)
    frames = trace.get("frames") or [{}]
    place = f"{frames[-1].get('filename')}:{frames[-1].get('lineno')} in {frames[-1].get('name')}"
    return f"{trace.get('exc_type')}: {trace.get('exc_value')} ({place})"


def _when(line: Mapping[str, Any]) -> str:
    """The moment in local time; what is none as it is."""
    text = str(line.get("timestamp", ""))
    try:
        return f"{datetime.fromisoformat(text).astimezone():%H:%M:%S.%f}"[:-3]
    except ValueError:
        return printable(text)


def _shown(value: Any) -> str:
    """A value as one word, or in quotes."""
    is_word = isinstance(value, str) and value.isprintable() and len(value.split()) == 1
    return str(value) if is_word else json_text(value)
