"""`mlxd events`: what the daemon decided, and what happens now."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import datetime
from typing import Any

import click

from mlxd.daemon.cli.address import find_daemon
from mlxd.daemon.cli.answers import view
from mlxd.daemon.cli.client import DaemonClient
from mlxd.daemon.cli.event_lines import DecisionList, EventLines
from mlxd.daemon.cli.following import Show, show_stream
from mlxd.daemon.cli.options import with_json, with_url
from mlxd.daemon.cli.output import print_json
from mlxd.daemon.cli.plain import json_text, one_line, printable

_LINE_WIDTH = 500


@click.command(epilog="\b\nExample:\n  mlxd events\n  mlxd events --follow\n  mlxd events --follow --json | jq .event")
@click.option("-f", "--follow", is_flag=True, help="Show what happens from now on, until Ctrl-C.")
@with_json
@with_url
def events(follow: bool, url: str | None, as_json: bool) -> None:
    """Show the last loads, evictions, refusals and aborts with their reasons.

    With --follow, what happens from now on: decisions, models, requests, downloads and memory. Lines that would repeat
    themselves are left out; --json has all events, one a line. A connection that drops is made again.
    """
    if not follow:
        _print_decisions(asyncio.run(_last_decisions(url)), as_json=as_json)
        return
    with suppress(KeyboardInterrupt):
        asyncio.run(show_stream(url, "/admin/events", _show_json if as_json else _show_lines()))


async def _last_decisions(url: str | None) -> Any:
    async with DaemonClient(find_daemon(url)) as client:
        return await client.get("/admin/decisions")


def _print_decisions(answer: Any, *, as_json: bool) -> None:
    if as_json:
        print_json(answer)
        return
    decisions = view(answer, DecisionList).data
    if not decisions:
        click.echo("nothing was decided yet; a request for a model is the first reason to", err=True)
    for decision in decisions:
        click.echo(f"{decision.when()}  {printable(decision.line())}")


def _show_json(name: str, data: Any) -> None:
    click.echo(json_text({"event": name, **data}))


def _show_lines() -> Show:
    lines = EventLines()

    def show(name: str, data: Any) -> None:
        text = lines.line(name, data)
        if text is not None:
            click.echo(f"{datetime.now().astimezone():%H:%M:%S}  {name:9} {one_line(text, _LINE_WIDTH)}")

    return show
