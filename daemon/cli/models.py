"""`mlxd list`, `mlxd ps` and `mlxd show`: what models there are and what they do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import click

from mlxd.daemon.cli.address import find_daemon
from mlxd.daemon.cli.answers import view
from mlxd.daemon.cli.client import DaemonClient, model_path
from mlxd.daemon.cli.options import with_json, with_model, with_url
from mlxd.daemon.cli.output import Column, print_fields, print_json, print_table
from mlxd.daemon.cli.views import EngineView, ModelList, ModelView, duration, moment, size
from mlxd.daemon.units import format_duration

ALL_MODELS = "/admin/models"

_LIST_COLUMNS = (
    Column("NAME", wraps=True),
    Column("KIND"),
    Column("SIZE", right=True),
    Column("STATE"),
    Column("ALIASES", wraps=True),
)
_PS_COLUMNS = (
    Column("NAME", wraps=True),
    Column("STATE"),
    Column("MEMORY", right=True),
    Column("LEASES", right=True),
    Column("QUEUE", right=True),
    Column("UNLOADS"),
)


@click.command("list", epilog="\b\nExample:\n  mlxd list\n  mlxd list --json | jq -r '.data[].id'")
@with_json
@with_url
def list_models(url: str | None, as_json: bool) -> None:
    """List all known models."""
    answer = asyncio.run(_get(url, ALL_MODELS))
    if as_json:
        print_json(answer)
        return
    models = view(answer, ModelList).data
    if not models:
        click.echo("there is no model yet; `mlxd pull` gets one, or put one into a folder of models.dirs", err=True)
        return
    rows = [(m.id, m.kind, size(m.weight_bytes), m.state, ", ".join(m.aliases)) for m in models]
    print_table(_LIST_COLUMNS, rows)


@click.command(epilog="\b\nExample:\n  mlxd ps\n  mlxd ps --json")
@with_json
@with_url
def ps(url: str | None, as_json: bool) -> None:
    """List the models in memory.

    Those on their way into it are listed too.
    """
    answer = asyncio.run(_get(url, ALL_MODELS))
    models = view(answer, ModelList).data
    if as_json:
        resident = {model.id for model in models if model.is_in_memory()}
        print_json({"data": [model for model in answer["data"] if model["id"] in resident]})
        return
    resident_models = [model for model in models if model.is_in_memory()]
    if not resident_models:
        click.echo("no model is in memory; a request loads one, or `mlxd load MODEL`", err=True)
        return
    print_resident(resident_models)


@click.command(epilog="\b\nExample:\n  mlxd show qwen\n  mlxd show qwen --json")
@with_model
@with_json
@with_url
def show(model: str, url: str | None, as_json: bool) -> None:
    """Show one model in full."""
    answer = asyncio.run(_get(url, model_path(model)))
    if as_json:
        print_json(answer)
    else:
        print_fields(_fields(view(answer, ModelView)))


def print_resident(models: list[ModelView]) -> None:
    """Print the table of models in memory."""
    print_table(
        _PS_COLUMNS,
        [(m.id, m.state_text(), size(m.resident_bytes), str(m.leases), str(m.queued), m.unload_text()) for m in models],
    )


async def _get(url: str | None, path: str) -> Any:
    async with DaemonClient(find_daemon(url)) as client:
        return await client.get(path)


def _fields(model: ModelView) -> Iterator[tuple[str, str]]:
    yield "name", model.id
    if model.aliases:
        yield "aliases", ", ".join(model.aliases)
    yield "kind", model.kind
    if model.capabilities:
        yield "can do", ", ".join(model.capabilities)
    if model.context_length:
        yield "context", f"{model.context_length} tokens"
    yield "path", model.path
    yield "state", model.state_text()
    yield from _trouble(model)
    yield "weights", size(model.weight_bytes)
    if model.is_in_memory():
        yield "in memory", size(model.resident_bytes)
        yield "kv cache", size(model.kv_bytes)
        yield "prefix cache", size(model.prefix_cache_bytes)
    yield "in use by", f"{model.leases} requests, {model.queued} queued"
    yield "idle limit", format_duration(model.ttl_s)
    if model.is_in_memory():
        yield "unloads", model.unload_text()
    elif model.pinned:
        yield "pinned", "yes"
    yield "loaded", moment(model.loaded_at) + (f", took {duration(model.load_seconds)}" if model.load_seconds else "")
    yield "last used", moment(model.last_used_at)
    yield "isolation", model.isolation + (f" (process {model.pid})" if model.pid else "")
    if model.hosts:
        yield "hosts", ", ".join(model.hosts)
    if model.engine is not None:
        yield from _engine_fields(model.engine)


def _trouble(model: ModelView) -> Iterator[tuple[str, str]]:
    error = model.error
    if error is not None:
        yield "error", f"{error.message} ({error.reason})"
        yield "attempts", str(error.attempts)
        yield "tried again", moment(error.retry_at)


def _engine_fields(engine: EngineView) -> Iterator[tuple[str, str]]:
    yield "requests", f"{engine.running} running, {engine.waiting} waiting"
    tokens = f"{engine.prompt_tokens} prompt ({engine.cached_tokens} cached), {engine.completion_tokens} generated"
    yield "tokens", tokens
    if engine.decode_tps:
        yield "speed", f"{engine.decode_tps:.1f} tokens/s"
    if engine.heartbeat_age_s is not None:
        yield "heartbeat", f"{duration(engine.heartbeat_age_s)} ago"
