"""Shows how a download goes on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mlxd.daemon.cli.bars import LABEL_WIDTH, byte_bar
from mlxd.daemon.cli.plain import one_line
from mlxd.daemon.cli.pull_view import PullView
from mlxd.daemon.cli.views import duration
from mlxd.daemon.units import format_bytes

Show = Callable[[PullView], None]


@contextmanager
def pull_bar() -> Iterator[Show]:
    """What shows a download as a bar on standard error, if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    with byte_bar() as progress:
        task = progress.add_task("", total=None, note="")

        def show(pull: PullView) -> None:
            label = f"{one_line(pull.repo, LABEL_WIDTH)} {pull.state}"
            total = pull.bytes_total or None
            progress.update(task, description=label, completed=pull.bytes_done, total=total, note=_speed(pull))

        yield show


def _speed(pull: PullView) -> str:
    if not pull.bytes_per_s:
        return ""
    eta = f" eta {duration(pull.eta_s)}" if pull.eta_s is not None else ""
    return f"{format_bytes(round(pull.bytes_per_s))}/s{eta}"
