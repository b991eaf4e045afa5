"""Writes a worker's log lines with the daemon's own."""

from __future__ import annotations

import structlog

from mlxd.engines.worker.frames import from_json
from mlxd.engines.worker.to_daemon import LogLine


def relay(line: LogLine, model: str) -> None:
    """Log a line of the worker of `model` under the name of the logger that it had there."""
    fields = {"model": model, **from_json(line.fields)}
    structlog.stdlib.get_logger(line.logger).log(line.level, line.event.replace("%", "%%"), **fields)
