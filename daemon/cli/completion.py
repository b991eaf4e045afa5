"""`mlxd completion`, and the names of models that it completes."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import click
import msgspec
from click.shell_completion import CompletionItem, get_completion_class

from mlxd.daemon.cli.address import find_daemon
from mlxd.daemon.cli.answers import view
from mlxd.daemon.cli.failures import CommandFailed
from mlxd.daemon.cli.plain import printable

SHELLS = ("bash", "zsh", "fish")

# Seconds for which a key press waits for the daemon.
_PATIENCE = 1.0
_EXAMPLES = """\b
Examples:
  eval "$(mlxd completion bash)"                               # in ~/.bashrc
  eval "$(mlxd completion zsh)"                                # in ~/.zshrc
  mlxd completion fish > ~/.config/fish/completions/mlxd.fish"""


class _Name(msgspec.Struct, frozen=True):
    id: str


class _Names(msgspec.Struct, frozen=True):
    data: list[_Name]


@click.command(epilog=_EXAMPLES)
@click.argument("shell", type=click.Choice(SHELLS), required=False)
@click.pass_context
def completion(ctx: click.Context, shell: str | None) -> None:
    """Print what completes commands and models in a shell.

    Without SHELL it is for that of $SHELL.
    """
    name = shell or Path(os.environ.get("SHELL", "")).name
    kind = get_completion_class(name) if name in SHELLS else None
    if kind is None:
        raise click.UsageError(f"expected one of {', '.join(SHELLS)}")
    program = ctx.find_root()
    click.echo(kind(program.command, {}, "mlxd", "_MLXD_COMPLETE").source())


def model_names(ctx: click.Context, _param: click.Parameter, typed: str) -> list[CompletionItem]:
    """The names of models that begin with what was typed; none without a daemon, where nothing can be said."""
    try:
        names = asyncio.run(_names(ctx.params.get("url")))
    except (CommandFailed, TimeoutError):
        return []
    return [CompletionItem(name) for name in names if name.startswith(typed)]


async def _names(url: str | None) -> list[str]:
    from mlxd.daemon.cli.client import DaemonClient  # noqa: PLC0415 - options are read without it

    async with asyncio.timeout(_PATIENCE), DaemonClient(find_daemon(url)) as client:
        answer = await client.get("/v1/models")
    return [printable(each.id) for each in view(answer, _Names).data]
