"""Shows how a download goes on."""

# rich is imported when a bar is shown: what shows none starts without it.
# ruff: noqa: PLC0415

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mlxd.daemon.cli.plain import one_line
from mlxd.daemon.cli.pull_view import PullView
from mlxd.daemon.cli.views import duration
from mlxd.daemon.units import format_bytes

_LABEL_WIDTH = 40

Show = Callable[[PullView], None]


@contextmanager
def pull_bar() -> Iterator[Show]:
    """What shows a download as a bar on standard error, if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TextColumn("{task.fields[speed]}", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True, force_jupyter=False), transient=True) as progress:
        task = progress.add_task("", total=None, speed="")

        def show(pull: PullView) -> None:
            label = f"{one_line(pull.repo, _LABEL_WIDTH)} {pull.state}"
            total = pull.bytes_total or None
            progress.update(task, description=label, completed=pull.bytes_done, total=total, speed=_speed(pull))

        yield show


def _speed(pull: PullView) -> str:
    if not pull.bytes_per_s:
        return ""
    eta = f" eta {duration(pull.eta_s)}" if pull.eta_s is not None else ""
    return f"{format_bytes(round(pull.bytes_per_s))}/s{eta}"
