"""What `mlxd service status` shows: what the service manager knows, and what the daemon says itself."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import click
from msgspec import Struct, to_builtins

from mlxd.daemon.cli.address import find_daemon
from mlxd.daemon.cli.answers import view
from mlxd.daemon.cli.client import DaemonClient
from mlxd.daemon.cli.failures import CommandFailed
from mlxd.daemon.cli.output import print_fields, print_json
from mlxd.daemon.cli.views import duration
from mlxd.daemon.service.state import ServiceManager, ServiceState

_ANSWER_SECONDS = 3.0


class HealthView(Struct, frozen=True):
    """What an mlxd says at /health; anything else does not have all of it."""

    status: str
    version: str
    pid: int
    uptime_s: float


@dataclass(frozen=True, slots=True)
class Place:
    """Where the daemon should answer; where nobody can know, `trouble` says why."""

    url: str | None
    trouble: str | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """All that is shown."""

    manager: str
    file: str
    state: ServiceState
    place: Place
    health: HealthView | None
    log: str


def find_url(url: str | None) -> Place:
    """The address that the command line, the environment or the configuration names."""
    try:
        return Place(find_daemon(url).url)
    except click.ClickException as error:  # the service can be looked at without it
        return Place(None, error.message)


def answering(url: str | None) -> int | None:
    """The process that answers there, None when none does."""
    health = None if url is None else asyncio.run(_health(url))
    return None if health is None else health.pid


def look(manager: ServiceManager, place: Place) -> Page:
    """Ask the manager and the daemon. Raises ServiceFailed."""
    health = None if place.url is None else asyncio.run(_health(place.url))
    return Page(manager.name, str(manager.file), manager.state(), place, health, manager.log_hint)


def print_page(page: Page, *, as_json: bool) -> None:
    """Print it for people, or as JSON."""
    if as_json:
        print_json(_public(page))
    else:
        print_fields(_fields(page))


async def _health(url: str) -> HealthView | None:
    async with DaemonClient(find_daemon(url)) as client:
        try:
            return view(await client.call("GET", "/health", timeout=_ANSWER_SECONDS), HealthView)
        except CommandFailed:
            return None


def _public(page: Page) -> dict[str, object]:
    known = to_builtins(page.state)
    health = to_builtins(page.health)
    return {"manager": page.manager, "file": page.file, **known, "url": page.place.url, "health": health}


def _fields(page: Page) -> list[tuple[str, str]]:
    state = page.state
    installed = "installed" if state.installed else "not installed; `mlxd service install` does that"
    enabled = {True: ", starts at login", False: ", does not start at login", None: ""}[state.enabled]
    fields = [("service", f"{page.manager}: {installed}" + enabled * state.installed), ("file", page.file)]
    fields.append(("running", _running(state)))
    if state.last_exit is not None:
        fields.append(("last exit", str(state.last_exit)))
    fields.append(("daemon", _daemon(page)))
    return [*fields, ("log", page.log)] if state.installed else fields


def _running(state: ServiceState) -> str:
    if state.trouble is not None:
        return f"unknown: {state.trouble}"
    return f"yes, process {state.pid}" if state.running else "no"


def _daemon(page: Page) -> str:
    if page.place.url is None:
        return f"unknown: {page.place.trouble}"
    if page.health is None:
        return f"none answers at {page.place.url}"
    health = page.health
    process = "" if health.pid == page.state.pid else f", process {health.pid}"
    other = ", which is not the service" if process and page.state.trouble is None else ""
    return f"mlxd {health.version} on {page.place.url}, up {duration(health.uptime_s)}{process}{other}"
