"""`mlxd status`: the daemon's health on one page."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import click
from msgspec import Struct

from mlxd.daemon.cli.address import find_daemon
from mlxd.daemon.cli.answers import view
from mlxd.daemon.cli.client import READ_TIMEOUT, DaemonClient
from mlxd.daemon.cli.failures import Exit
from mlxd.daemon.cli.models import ALL_MODELS, print_resident
from mlxd.daemon.cli.options import with_json, with_url
from mlxd.daemon.cli.output import Column, print_json, print_table
from mlxd.daemon.cli.plain import printable
from mlxd.daemon.cli.views import MemoryView, ModelList, RequestList, RequestView, duration, size

_OK = 200
_MOST_REQUESTS = 10
_REQUEST_COLUMNS = (
    Column("REQUEST", wraps=True),
    Column("MODEL", wraps=True),
    Column("STATE"),
    Column("AGE", right=True),
    Column("TOKENS", right=True),
    Column("TOK/S", right=True),
)


class HealthView(Struct, frozen=True):
    """What /health says; `uptime_s` in seconds."""

    version: str | None = None
    uptime_s: float | None = None


class Page(Struct, frozen=True):
    """All answers of one page, as the daemon gave them; `is_ready` is what /health/ready's status says."""

    health: Any
    is_ready: bool
    readiness: Any
    memory: Any
    models: Any
    requests: Any


@click.command(epilog="\b\nExample:\n  mlxd status\n  mlxd status --json | jq .memory.footprint_bytes")
@with_json
@with_url
def status(url: str | None, as_json: bool) -> int:
    """Show the daemon's health on one page.

    The exit code is 1 when the daemon answers but is not ready.
    """
    address = find_daemon(url)
    page = asyncio.run(_fetch(DaemonClient(address)))
    if as_json:
        parts = {"health": page.health, "ready": page.readiness, "memory": page.memory}
        print_json(parts | {"models": page.models["data"], "requests": page.requests["data"]})
    else:
        _print_page(page, address.url)
    return Exit.OK if page.is_ready else Exit.FAILED


async def _fetch(client: DaemonClient) -> Page:
    async with client:
        health = await client.get("/health")
        ready, readiness = await client.answer("GET", "/health/ready", timeout=READ_TIMEOUT)
        memory, models, requests = await asyncio.gather(
            client.get("/admin/memory"), client.get(ALL_MODELS), client.get("/admin/requests")
        )
    return Page(health, ready == _OK, readiness, memory, models, requests)


def _print_page(page: Page, url: str) -> None:
    health = view(page.health, HealthView) if isinstance(page.health, dict) else HealthView()
    up = f", up {duration(health.uptime_s)}" if health.uptime_s is not None else ""
    _line("daemon", f"mlxd {health.version or ''}".rstrip() + f" on {url}{up}")
    _line("ready", "yes" if page.is_ready else f"no: {_reason(page.readiness)}")
    _print_memory(view(page.memory, MemoryView))
    resident = [model for model in view(page.models, ModelList).data if model.is_in_memory()]
    _line("models", f"{len(resident)} in memory")
    if resident:
        print_resident(resident)
    requests = view(page.requests, RequestList).data
    _line("requests", f"{len(requests)} queued or running")
    if requests:
        print_table(_REQUEST_COLUMNS, [_request_row(request) for request in requests[:_MOST_REQUESTS]])
    if len(requests) > _MOST_REQUESTS:
        click.echo(f"and {len(requests) - _MOST_REQUESTS} more, see --json")


def _reason(readiness: Any) -> str:
    """Why the daemon is not ready, in its own words."""
    reasons = readiness.get("reasons") if isinstance(readiness, dict) else None
    if isinstance(reasons, list) and reasons:
        return "; ".join(str(reason) for reason in reasons)
    return json.dumps(readiness, ensure_ascii=False)


def _print_memory(memory: MemoryView) -> None:
    share = f" ({100 * memory.footprint_bytes // memory.ceiling_bytes}%)" if memory.ceiling_bytes else ""
    bound = f", limit: {memory.limit}" if memory.limit else ""
    pressure = f", pressure: {memory.pressure}" if memory.pressure else ""
    _line("memory", f"{size(memory.footprint_bytes)} of {size(memory.ceiling_bytes)}{share}{bound}{pressure}")
    free, total = memory.machine_available_bytes, memory.machine_total_bytes
    _line("", f"soft limit {size(memory.soft_bytes)}, machine {size(total)}, available {size(free)}")
    for name, count in memory.parts.items():
        if count:
            _line("", f"{name.replace('_', ' ')} {size(count)}")


def _request_row(request: RequestView) -> tuple[str, ...]:
    waits = f" ({request.waiting_for})" if request.waiting_for else ""
    speed = f"{request.decode_tps:.1f}" if request.decode_tps else "-"
    tokens = f"{request.prompt_tokens or 0}+{request.completion_tokens or 0}"
    return request.id, request.model, request.state + waits, duration(request.age_s), tokens, speed


def _line(name: str, text: str) -> None:
    click.echo(f"{name:10}{printable(text)}")
