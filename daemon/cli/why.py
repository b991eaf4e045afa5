"""`mlxd why`: what would happen if a model were asked for now."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from mlxd.daemon.cli.address import find_daemon
from mlxd.daemon.cli.answers import view
from mlxd.daemon.cli.client import DaemonClient, model_path
from mlxd.daemon.cli.options import with_json, with_model, with_url
from mlxd.daemon.cli.output import print_json
from mlxd.daemon.cli.plain import printable
from mlxd.daemon.cli.plans import PlanView


@click.command(epilog="\b\nExample:\n  mlxd why qwen\n  mlxd why qwen --json | jq -r .verdict")
@with_model
@with_json
@with_url
def why(model: str, url: str | None, as_json: bool) -> None:
    """Tell what would happen if a request named MODEL now, and why.

    Whether it fits, who would leave for it, who is in the way, and how long it would take. Nothing is changed.
    """
    show_plan(asyncio.run(_explain(url, model)), as_json=as_json)


def show_plan(answer: Any, *, as_json: bool) -> None:
    """Print a plan as the daemon gave it, or in sentences."""
    if as_json:
        print_json(answer)
        return
    for sentence in view(answer, PlanView).sentences():
        click.echo(printable(sentence))


async def _explain(url: str | None, model: str) -> Any:
    async with DaemonClient(find_daemon(url)) as client:
        return await client.get(model_path(model, below="explain"))
