"""A worker's log goes to the daemon, which writes it with its own."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Mapping
from typing import Any

import structlog

from mlxd.engines.worker.channel import Channel
from mlxd.engines.worker.frames import sayable, to_json
from mlxd.engines.worker.to_daemon import LogLine

_NOT_FIELDS = frozenset({"event", "level", "logger", "timestamp", "exc_info"})


class _Lines(logging.Handler):
    """Lines of libraries."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        try:
            fields = {} if record.exc_info is None else _exception(record.exc_info[1])
            line = _line(record.levelno, record.name, record.getMessage(), fields)
        # Whoever logs what cannot be formatted must not fail for it.
        except Exception as error:  # noqa: BLE001
            line = _line(logging.ERROR, record.name, "log.failed", {"error": repr(error)})
        self._channel.send(line)


def log_to(channel: Channel, level: int) -> None:
    """Send every line of this level or above, of libraries and our own, through the channel."""
    root = logging.getLogger()
    root.handlers[:] = [_Lines(channel)]
    root.setLevel(max(level, logging.INFO))
    logging.captureWarnings(True)

    def send(logger: Any, method: str, fields: structlog.typing.EventDict) -> str:
        exc_info = fields.pop("exc_info", None)
        error = exc_info if isinstance(exc_info, BaseException) else (sys.exception() if exc_info else None)
        name = str(fields.pop("logger", "") or getattr(logger, "name", ""))
        line = {**fields, **_exception(error)}
        channel.send(_line(logging.getLevelNamesMapping()[method.upper()], name, str(line.pop("event", "")), line))
        raise structlog.DropEvent

    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, structlog.stdlib.add_logger_name, send],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=False,
    )


def _line(level: int, logger: str, event: str, fields: Mapping[str, Any]) -> LogLine:
    kept = {name: value for name, value in fields.items() if name not in _NOT_FIELDS}
    return LogLine(level, logger, sayable(event), to_json(kept, default=repr))


def _exception(error: BaseException | None) -> dict[str, str]:
    """Without local variables, which would carry prompts into the log."""
    return {} if error is None else {"exception": "".join(traceback.format_exception(error, chain=True))}
