"""`mlxd events`: what the daemon decided, and what happens now."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from datetime import datetime
from typing import Any

import click

from mlxd.daemon.cli.address import find_daemon
from mlxd.daemon.cli.answers import view
from mlxd.daemon.cli.client import DaemonClient
from mlxd.daemon.cli.event_lines import DecisionList, EventLines
from mlxd.daemon.cli.failures import CommandFailed, ConnectionLost, NotReachable
from mlxd.daemon.cli.options import with_json, with_url
from mlxd.daemon.cli.output import print_json
from mlxd.daemon.cli.plain import one_line, printable
from mlxd.daemon.cli.sse import Message, SseParser

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 5.0
"""Seconds before the first and before a late attempt to connect again."""

_LINE_WIDTH = 500

Show = Callable[[str, Any], None]


@click.command(epilog="\b\nExample:\n  mlxd events\n  mlxd events --follow\n  mlxd events --follow --json | jq .event")
@click.option("-f", "--follow", is_flag=True, help="Show what happens from now on, until Ctrl-C.")
@with_json
@with_url
def events(follow: bool, url: str | None, as_json: bool) -> None:
    """Show the last loads, evictions, refusals and aborts with their reasons.

    With --follow, what happens from now on: decisions, models, requests and memory. Lines that would repeat themselves
    are left out; --json has all events, one a line. A connection that drops is made again.
    """
    if not follow:
        _print_decisions(asyncio.run(_last_decisions(url)), as_json=as_json)
        return
    with suppress(KeyboardInterrupt):
        asyncio.run(_follow(url, _show_json if as_json else _show_lines()))


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
    click.echo(json.dumps({"event": name, **data}, ensure_ascii=False))


def _show_lines() -> Show:
    lines = EventLines()

    def show(name: str, data: Any) -> None:
        text = lines.line(name, data)
        if text is not None:
            click.echo(f"{datetime.now().astimezone():%H:%M:%S}  {name:9} {one_line(text, _LINE_WIDTH)}")

    return show


async def _follow(url: str | None, show: Show) -> None:
    """Show events until cancelled. Raises CommandFailed when there is no daemon at first, or what answers is none."""
    seen: int | None = None
    pause = FIRST_PAUSE
    async with DaemonClient(find_daemon(url)) as client:
        while True:
            last = await _show_until_lost(client, seen, show)
            if last != seen:
                pause = FIRST_PAUSE
            seen = last
            if pause == FIRST_PAUSE:
                click.echo(f"mlxd: lost the connection to {client.url}; trying again", err=True)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)


async def _show_until_lost(client: DaemonClient, seen: int | None, show: Show) -> int | None:
    """Show what follows the event `seen` until the connection ends; the number of the last event that was shown."""
    try:
        async with aclosing(_events(client, seen)) as received:
            async for name, data in received:
                seen = data["seq"]
                show(name, data)
    except (NotReachable, ConnectionLost):
        if seen is None:
            raise
    return seen


async def _events(client: DaemonClient, seen: int | None) -> AsyncGenerator[tuple[str, Any], None]:
    """Name and data of the events after the one that was seen last."""
    headers = {} if seen is None else {"Last-Event-ID": str(seen)}
    parser = SseParser()
    async with client.stream("/admin/events", headers=headers) as chunks:
        async for chunk in chunks:
            for message in parser.feed(chunk):
                if isinstance(message, Message):
                    yield message.event, _data(message, client.url)


def _data(message: Message, url: str) -> Any:
    try:
        data = json.loads(message.data)
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict) or not isinstance(data.get("seq"), int):
        raise CommandFailed(f"{url} sent an event without a number; is that mlxd, and this version?")
    return data
