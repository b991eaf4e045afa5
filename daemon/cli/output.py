"""Tables and JSON on standard output."""

# rich is imported when a table is printed: what prints none starts without it.
# ruff: noqa: PLC0415

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import click

from mlxd.daemon.cli.plain import json_text, one_line, printable

PIPE_WIDTH = 80
"""Columns of a table that does not go to a terminal."""

_SHORT = 24


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. One that `wraps` gives way when the table is too wide; nothing is cut off."""

    title: str
    wraps: bool = False
    right: bool = False


def print_json(value: Any) -> None:
    """Print JSON as the daemon gave it, indented."""
    click.echo(json_text(value, indent=2))


def print_table(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> None:
    """Print rows under their titles without any frame; in bold titles on a terminal, else plain and 80 wide."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    on_terminal = sys.stdout.isatty()
    console = Console(force_terminal=on_terminal, width=None if on_terminal else PIPE_WIDTH, force_jupyter=False)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(
            column.title, justify="right" if column.right else "left", no_wrap=not column.wraps, overflow="fold"
        )
    for row in rows:
        # Text, so that brackets in a name are not taken for markup
        table.add_row(*(Text(_cell(cell, column)) for cell, column in zip(row, columns, strict=True)))
    with console.capture() as captured:
        console.print(table, soft_wrap=False)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def print_fields(fields: Iterable[tuple[str, str]]) -> None:
    """Print one name and value per line, the values in a column."""
    rows = list(fields)
    width = max((len(name) for name, _ in rows), default=0) + 2
    for name, value in rows:
        click.echo(f"{name:{width}}{printable(value)}".rstrip())


def _cell(text: str, column: Column) -> str:
    return printable(text) if column.wraps else one_line(text, _SHORT)
