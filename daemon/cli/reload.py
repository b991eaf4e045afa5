"""`mlxd reload`: apply a changed configuration."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import click
from msgspec import Struct, ValidationError, convert

from mlxd.daemon.cli.address import find_daemon
from mlxd.daemon.cli.answers import failure_from, view
from mlxd.daemon.cli.client import DaemonClient
from mlxd.daemon.cli.failures import BadConfig
from mlxd.daemon.cli.options import with_json, with_url
from mlxd.daemon.cli.output import print_json
from mlxd.daemon.cli.plain import printable

_FIRST_ERROR = 400
_WHEN = {"restart": " (after a restart)", "reload": " (its models are loaded again)"}


class KeyView(Struct, frozen=True):
    """A key that differs, with its values in the form of the file; None where it is not set."""

    key: str
    old: Any
    new: Any
    applies: str


class ModelsView(Struct, frozen=True):
    """Names of models, by what becomes of them."""

    added: list[str]
    removed: list[str]
    reloaded: list[str]
    changed: list[str]


class DiffView(Struct, frozen=True):
    """What a reload changes."""

    dry_run: bool
    keys: list[KeyView]
    models: ModelsView
    notes: list[str]


class _Details(Struct, frozen=True):
    problems: list[dict[str, Any]]


class _ErrorView(Struct, frozen=True):
    message: str
    details: _Details


class _InvalidConfig(Struct, frozen=True):
    error: _ErrorView


@click.command(epilog="\b\nExample:\n  mlxd reload --dry-run\n  mlxd reload")
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@with_json
@with_url
def reload(dry_run: bool, as_json: bool, url: str | None) -> None:
    """Apply a changed configuration to the running daemon.

    It reads its configuration and the models folders again, and shows what changed. Models that did not change are not
    touched. An invalid configuration changes nothing; the exit code is then 78.
    """
    answer = asyncio.run(_reload(DaemonClient(find_daemon(url)), {"dry_run": dry_run}))
    if as_json:
        print_json(answer)
        return
    for line in _lines(view(answer, DiffView)):
        click.echo(printable(line))


async def _reload(client: DaemonClient, body: dict[str, Any]) -> Any:
    async with client:
        status, answer = await client.answer("POST", "/admin/reload", body)
    if status < _FIRST_ERROR:
        return answer
    if (message := _invalid(answer)) is not None:
        raise BadConfig(message)
    raise failure_from(status, answer, client.url)


def _invalid(answer: Any) -> str | None:
    """What is wrong with the configuration, None when something else is."""
    try:
        return convert(answer, _InvalidConfig).error.message
    except ValidationError:
        return None


def _lines(diff: DiffView) -> Iterator[str]:
    for change in diff.keys:
        yield f"{change.key}: {_shown(change.old)} -> {_shown(change.new)}{_WHEN.get(change.applies, '')}"
    models = (
        ("added", diff.models.added),
        ("removed", diff.models.removed),
        ("loads again", diff.models.reloaded),
        ("changed", diff.models.changed),
    )
    yield from (f"{verb}: {', '.join(names)}" for verb, names in models if names)
    yield from (f"note: {note}" for note in diff.notes)
    if not diff.keys and not any(names for _, names in models):
        yield "nothing to do"
    elif diff.dry_run:
        yield "nothing was changed, this was a dry run"


def _shown(value: Any) -> str:
    return "not set" if value is None else json.dumps(value, ensure_ascii=False)
