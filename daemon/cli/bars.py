"""The bar that shows how many bytes are there."""

# rich is imported when a bar is shown: what shows none starts without it.
# ruff: noqa: PLC0415

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

LABEL_WIDTH = 40


def byte_bar() -> Progress:
    """A bar on standard error, gone at its end; its tasks have a `note` that stands behind the bytes."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TextColumn("{task.fields[note]}", markup=False),
    )
    return Progress(*columns, console=Console(stderr=True, force_jupyter=False), transient=True)
