"""`mlxd doctor`: what keeps the daemon from serving here, and what to do about it."""

# What looks at everything is imported when it is asked for.
# ruff: noqa: PLC0415

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

import click
from msgspec import to_builtins

from mlxd.daemon.cli.doctor_checks import Check, Level
from mlxd.daemon.cli.failures import Exit
from mlxd.daemon.cli.options import with_json
from mlxd.daemon.cli.output import Column, print_json, print_table

_COLUMNS = (Column("WHERE"), Column("WHAT"), Column("HOW"), Column("FOUND", wraps=True))


@click.command(
    epilog="\b\nExample:\n  mlxd doctor\n  mlxd doctor --config ./mlxd.toml\n"
    "  mlxd doctor --json | jq '.data[] | select(.level != \"ok\")'",
)
@click.option("--config", type=click.Path(path_type=Path), metavar="F", help="The configuration file.")
@with_json
def doctor(config: Path | None, as_json: bool) -> int:
    """Check machine, MLX, memory limits, configuration, address and models.

    Says what to do about each problem. A daemon need not run; one that does is asked for its memory. Nothing is
    changed and no model is loaded. The exit code is 1 when there is a problem; warnings are none.
    """
    from mlxd.daemon.cli.doctor_rounds import examine

    checks = examine(config, os.environ)
    if as_json:
        print_json({"data": to_builtins(checks)})
    else:
        print_table(_COLUMNS, _rows(checks))
        click.echo(f"\n{_summary(checks)}")
    return Exit.FAILED if any(check.level is Level.PROBLEM for check in checks) else Exit.OK


def _rows(checks: Sequence[Check]) -> Iterator[tuple[str, ...]]:
    """A row for each check, the group's name on its first; advice is a line below what was found."""
    for group, members in groupby(checks, key=lambda check: check.group):
        for number, check in enumerate(members):
            text = check.found if check.advice is None else f"{check.found}\n→ {check.advice}"
            yield "" if number else group, check.name, check.level, text


def _summary(checks: Sequence[Check]) -> str:
    levels = [check.level for check in checks]
    parts = [
        f"{count} {level}{'s' * (count > 1)}"
        for level in (Level.PROBLEM, Level.WARNING)
        if (count := levels.count(level))
    ]
    return ", ".join(parts) or "all is well"
