"""Reads what the daemon streams, over connections that may drop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import click

from mlxd.daemon.cli.address import find_daemon
from mlxd.daemon.cli.client import DaemonClient
from mlxd.daemon.cli.failures import CommandFailed, ConnectionLost, NotReachable
from mlxd.daemon.cli.sse import Message, SseParser

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 5.0
"""Seconds before the first and before a late attempt to connect again."""

Show = Callable[[str, Any], None]


async def show_stream(url: str | None, path: str, show: Show, seen: int | None = None) -> None:
    """Show the events of a stream after the number `seen` until cancelled; a connection that drops is made again.

    Raises CommandFailed when there is no daemon at first, or what answers is none.
    """
    pause = FIRST_PAUSE
    async with DaemonClient(find_daemon(url)) as client:
        while True:
            last = await _show_until_lost(client, path, seen, show)
            if last != seen:
                pause = FIRST_PAUSE
            seen = last
            if pause == FIRST_PAUSE:
                click.echo(f"mlxd: lost the connection to {client.url}; trying again", err=True)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)


async def _show_until_lost(client: DaemonClient, path: str, seen: int | None, show: Show) -> int | None:
    """Show what follows the event `seen` until the connection ends; the number of the last event that was shown."""
    try:
        async with aclosing(_events(client, path, seen)) as received:
            async for name, data in received:
                seen = data["seq"]
                show(name, data)
    except (NotReachable, ConnectionLost):
        if seen is None:
            raise
    return seen


async def _events(client: DaemonClient, path: str, seen: int | None) -> AsyncGenerator[tuple[str, Any], None]:
    """Name and data of the events after the one that was seen last."""
    headers = {} if seen is None else {"Last-Event-ID": str(seen)}
    parser = SseParser()
    async with client.stream(path, headers=headers) as chunks:
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
