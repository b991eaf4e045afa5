"""`mlxd rm`: a model's files are deleted."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import click
from msgspec import Struct

from mlxd.daemon.cli.address import find_daemon
from mlxd.daemon.cli.answers import view
from mlxd.daemon.cli.client import DaemonClient, model_path
from mlxd.daemon.cli.failures import CommandFailed
from mlxd.daemon.cli.options import with_json, with_model, with_url
from mlxd.daemon.cli.output import print_json
from mlxd.daemon.cli.plain import printable
from mlxd.daemon.cli.views import ModelView, size
from mlxd.daemon.units import format_bytes

_TIMEOUT = 120.0


class DeletedView(Struct, frozen=True):
    """A deleted model, and the bytes of its files."""

    id: str
    freed_bytes: int = 0


@click.command("rm", epilog="\b\nExample:\n  mlxd rm mlx-community/Qwen3-8B-4bit\n  mlxd rm qwen --yes")
@with_model
@click.option("-y", "--yes", is_flag=True, help="Do not ask. Needed without a terminal.")
@with_json
@with_url
def rm(model: str, yes: bool, url: str | None, as_json: bool) -> None:
    """Delete a model's files.

    It has to be in a folder of models.dirs, and not in memory.
    """
    if not yes:
        _ask(model, url)
    answer = asyncio.run(_call(url, "DELETE", model))
    if as_json:
        print_json(answer)
        return
    deleted = view(answer, DeletedView)
    click.echo(printable(f"deleted {deleted.id}, {format_bytes(deleted.freed_bytes)}"))


def _ask(model: str, url: str | None) -> None:
    if not sys.stdin.isatty():
        raise click.UsageError("without a terminal to ask on, --yes is needed")
    known = view(asyncio.run(_call(url, "GET", model)), ModelView)
    question = printable(f"Delete {known.id}, {size(known.weight_bytes)} in {known.path}?")
    if not click.confirm(question, err=True):
        raise CommandFailed("nothing was deleted")


async def _call(url: str | None, method: str, model: str) -> Any:
    async with DaemonClient(find_daemon(url)) as client:
        return await client.call(method, model_path(model), timeout=_TIMEOUT)
