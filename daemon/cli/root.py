"""The `mlxd` command and the table of its subcommands.

Subcommands are imported when they are asked for, so that `mlxd --help` imports none of them.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from typing import NamedTuple

import click


class Entry(NamedTuple):
    """Where a subcommand is defined, and what it does in a line."""

    module: str
    attribute: str
    summary: str


COMMANDS: Mapping[str, Entry] = {
    "serve": Entry("serving", "serve", "Run the daemon in the foreground."),
    "run": Entry("run", "run", "Ask a model: one answer, or a chat."),
    "list": Entry("models", "list_models", "List all known models."),
    "ps": Entry("models", "ps", "List the models in memory."),
    "show": Entry("models", "show", "Show one model in full."),
    "load": Entry("residency", "load", "Load a model into memory and wait until it is ready."),
    "unload": Entry("residency", "unload", "Take a model out of memory and wait until it is gone."),
    "pin": Entry("residency", "pin", "Keep a model in memory: it is never evicted and never expires."),
    "unpin": Entry("residency", "unpin", "Let a model be evicted and expire again."),
    "why": Entry("why", "why", "Tell what would happen if a request named MODEL now, and why."),
    "events": Entry("events", "events", "Show the last loads, evictions, refusals and aborts with their reasons."),
    "logs": Entry("logs", "logs", "Show the last lines of the daemon's log."),
    "pull": Entry("pull", "pull", "Get a model from the Hugging Face hub."),
    "rm": Entry("removal", "rm", "Delete a model's files."),
    "import": Entry("gguf_import", "import_model", "Turn a GGUF file into an MLX model folder."),
    "peers": Entry("peers", "peers", "List the servers that answer for this daemon."),
    "status": Entry("status", "status", "Show the daemon's health on one page."),
    "reload": Entry("reload", "reload", "Apply a changed configuration to the running daemon."),
    "key": Entry("key", "key", "Make, list and remove API keys."),
    "service": Entry("service", "service", "Run the daemon as a service of this user."),
    "bench": Entry("bench", "bench", "Measure models: load, first token, answers alone and at once, swaps."),
    "doctor": Entry("doctor", "doctor", "Check machine, MLX, memory limits, configuration, address and models."),
    "config": Entry("configuration", "config", "Check or show the configuration."),
    "completion": Entry("completion", "completion", "Print what completes commands and models in a shell."),
}


class LazyGroup(click.Group):
    """Imports a subcommand's module only when it runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """All names, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """The subcommand of this name."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module = importlib.import_module(f"mlxd.daemon.cli.{entry.module}")
        command: click.Command = vars(module)[entry.attribute]
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the subcommand; an unknown name is a usage error that suggests the nearest one."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            near = difflib.get_close_matches(name, COMMANDS, n=1)
            ctx.fail(f"No such command {name!r}." + (f" Did you mean {near[0]!r}?" if near else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        """Write the overview from the table, without importing anything."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in COMMANDS.items()])


@click.command(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="\b\nExample:\n  mlxd serve &\n  mlxd run qwen 'Why is the sky blue?'",
)
@click.version_option(package_name="mlxd", message="mlxd %(version)s")
def cli() -> None:
    """Serve many MLX models behind one local address.

    Commands other than serve, import, key, service, doctor and config talk to a running daemon: the one at --url,
    else at $MLXD_URL, else where the configuration says. They send the key in $MLXD_API_KEY.
    """
