"""`mlxd load`, `unload`, `pin` and `unpin`: which models are in memory."""

from __future__ import annotations

import asyncio
from typing import Any

import click
from msgspec import Struct

from mlxd.daemon.cli.address import find_daemon
from mlxd.daemon.cli.answers import view
from mlxd.daemon.cli.client import DaemonClient, model_path
from mlxd.daemon.cli.failures import CommandFailed
from mlxd.daemon.cli.load_bar import load_bar
from mlxd.daemon.cli.options import checked_duration, checked_timeout, with_json, with_model, with_url
from mlxd.daemon.cli.output import print_json
from mlxd.daemon.cli.plain import printable
from mlxd.daemon.cli.views import ModelView, duration
from mlxd.daemon.cli.why import show_plan
from mlxd.daemon.units import format_bytes

CANCEL_TIMEOUT = 10.0
"""Seconds that the cancel of a load may take."""


class Freed(Struct, frozen=True):
    """What an unload gave back, in bytes."""

    id: str
    freed_bytes: int = 0


@click.command(epilog="\b\nExample:\n  mlxd load qwen --pin\n  mlxd load qwen --ttl 30m\n  mlxd load qwen --dry-run")
@with_model
@click.option("--pin", is_flag=True, help="Never evict it, never let it expire.")
@click.option("--ttl", callback=checked_duration, metavar="D", help="Unload it after so much idle time; 30m, never.")
@click.option("--dry-run", is_flag=True, help="Only tell what would happen, and change nothing.")
@with_json
@with_url
def load(model: str, pin: bool, ttl: float | str | None, url: str | None, *, dry_run: bool, as_json: bool) -> None:
    """Load a model into memory and wait until it is ready.

    Ctrl-C cancels the load. A model that is ready already stays as it is, but for --pin and --ttl.
    """
    body: dict[str, Any] = {"wait": True}
    if pin:
        body["pin"] = True
    if ttl is not None:
        body["ttl"] = ttl
    if dry_run:
        plan = asyncio.run(_send(url, "POST", model_path(model, "load"), body | {"dry_run": True}))
        show_plan(plan, as_json=as_json)
        return
    answer = asyncio.run(_load(url, model, body))
    if as_json:
        print_json(answer)
        return
    loaded = view(answer, ModelView)
    took = f", loaded in {duration(loaded.load_seconds)}" if loaded.load_seconds else ""
    memory = f", {format_bytes(loaded.resident_bytes)}" if loaded.resident_bytes else ""
    pinned = ", pinned" if loaded.pinned else ""
    _report(f"{loaded.id} is {loaded.state}{memory}{took}{pinned}")


@click.command(
    epilog="\b\nExample:\n  mlxd unload qwen\n  mlxd unload qwen --mode force\n  mlxd unload qwen --timeout 1m"
)
@with_model
@click.option(
    "--mode",
    type=click.Choice(["drain", "force"]),
    default="drain",
    show_default=True,
    help="Let running requests finish, or abort them.",
)
@click.option(
    "--timeout",
    callback=checked_timeout,
    metavar="D",
    help="Drain at most this long, then abort [default: residency.unload_timeout].",
)
@with_url
def unload(model: str, mode: str, timeout: float | None, url: str | None) -> None:
    """Take a model out of memory and wait until it is gone."""
    body: dict[str, Any] = {"mode": mode}
    if timeout is not None:
        body["timeout"] = timeout
    freed = view(asyncio.run(_send(url, "POST", model_path(model, "unload"), body)), Freed)
    gave = f"unloaded {freed.id}, freed {format_bytes(freed.freed_bytes)}"
    _report(gave if freed.freed_bytes else f"{freed.id} is not in memory, nothing to free")


@click.command(epilog="\b\nExample:\n  mlxd pin qwen")
@with_model
@with_url
def pin(model: str, url: str | None) -> None:
    """Keep a model in memory: it is never evicted and never expires.

    This does not load it; `mlxd load MODEL --pin` does both.
    """
    _set_pinned(model, url, pinned=True)


@click.command(epilog="\b\nExample:\n  mlxd unpin qwen")
@with_model
@with_url
def unpin(model: str, url: str | None) -> None:
    """Let a model be evicted and expire again."""
    _set_pinned(model, url, pinned=False)


def _set_pinned(model: str, url: str | None, *, pinned: bool) -> None:
    changed = view(asyncio.run(_send(url, "PATCH", model_path(model), {"pinned": pinned})), ModelView)
    _report(f"{changed.id} is {'pinned' if changed.pinned else 'not pinned'} and {changed.state}")


async def _send(url: str | None, method: str, path: str, body: dict[str, Any]) -> Any:
    async with DaemonClient(find_daemon(url)) as client:
        return await client.call(method, path, body)


async def _load(url: str | None, model: str, body: dict[str, Any]) -> Any:
    async with DaemonClient(find_daemon(url)) as client:
        try:
            async with load_bar(client, model):
                return await client.call("POST", model_path(model, "load"), body)
        except asyncio.CancelledError:
            await _cancel(client, model)
            raise


async def _cancel(client: DaemonClient, model: str) -> None:
    try:
        await client.call("DELETE", model_path(model, "load"), timeout=CANCEL_TIMEOUT)
    except CommandFailed as failure:
        failure.show()
    else:
        click.echo(f"mlxd: cancelled the load of {printable(model)}", err=True)


def _report(line: str) -> None:
    click.echo(printable(line))
