"""`mlxd peers`: the servers that answer for this daemon."""

from __future__ import annotations

import asyncio
from typing import Any

import click
from msgspec import Struct

from mlxd.daemon.cli.address import find_daemon
from mlxd.daemon.cli.answers import view
from mlxd.daemon.cli.client import DaemonClient
from mlxd.daemon.cli.options import with_json, with_url
from mlxd.daemon.cli.output import Column, print_json, print_table
from mlxd.daemon.cli.plain import printable
from mlxd.daemon.cli.views import duration

_COLUMNS = (
    Column("PEER", wraps=True),
    Column("STATE"),
    Column("MODELS", right=True),
    Column("REQUESTS", right=True),
    Column("FIRST TOKEN", right=True),
    Column("URL", wraps=True),
)


class PeerView(Struct, frozen=True):
    """A peer, times in seconds."""

    name: str
    url: str
    state: str
    error: str | None = None
    models: tuple[str, ...] = ()
    requests: int = 0
    first_token_s: float | None = None

    def row(self) -> tuple[str, ...]:
        """The cells of its line."""
        first = "" if self.first_token_s is None else duration(self.first_token_s)
        return self.name, self.state, str(len(self.models)), str(self.requests), first, self.url


class PeerList(Struct, frozen=True):
    """All of them."""

    data: list[PeerView]


@click.command(epilog="\b\nExample:\n  mlxd peers\n  mlxd peers --json | jq -r '.[] | select(.state == \"down\").name'")
@with_json
@with_url
def peers(url: str | None, as_json: bool) -> None:
    """List the servers that answer for this daemon.

    They are the [[peer]] entries of the configuration. One that does not answer as it should is left alone for a while.
    """
    answer = asyncio.run(_fetch(url))
    if as_json:
        print_json(answer["data"])
        return
    found = view(answer, PeerList).data
    if not found:
        click.echo("There are no peers; [[peer]] entries of the configuration name them.")
        return
    print_table(_COLUMNS, [peer.row() for peer in found])
    for peer in found:
        if peer.error is not None:
            click.echo(printable(f"{peer.name}: {peer.error}"))


async def _fetch(url: str | None) -> Any:
    async with DaemonClient(find_daemon(url)) as client:
        return await client.get("/admin/peers")
