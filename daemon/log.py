"""One log pipeline for the daemon, its libraries and warnings: structlog over the standard library."""

from __future__ import annotations

import contextlib
import json
import logging
import logging.handlers
import math
import sys
from collections.abc import MutableMapping, Sequence
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import Any, TextIO, TypeGuard

import structlog
from structlog.typing import Processor

from mlxd.daemon.config_errors import ConfigError, Problem
from mlxd.daemon.log_console import console_processors
from mlxd.daemon.log_tail import LogTail, TailHandler

_HANDLER = "mlxd"
_FILE_BYTES = 10_000_000
_FILE_COUNT = 5
_DEPTH = 8
# they tell of every request or lock, which is noise unless one looks for it
_CHATTY = ("aiohttp.access", "httpx", "httpcore", "urllib3", "filelock")
# these libraries print to standard error by handlers of their own
_SELF_LOGGING = ("transformers", "huggingface_hub")


def configure_logging(
    level: str,
    format: str,  # noqa: A002 - the key's name
    file: Path | None,
    stream: TextIO | None = None,
    *,
    only_file: bool = False,
    tail: LogTail | None = None,
) -> None:
    """Send all logging to `stream` (standard error), as `format` says, and to a rotated JSON file if one is given.

    "auto" is "console" on a terminal and "json" elsewhere. With `only_file` nothing goes to `stream` if there is a
    file. `tail` gets every line too. A second call replaces the first.
    Raises ConfigError for log.file if it cannot be written.
    """
    target = sys.stderr if stream is None else stream
    console = format == "console" or (format == "auto" and target.isatty())
    to_stream = _StreamHandler(target)
    to_stream.setFormatter(_console(target.isatty()) if console else _json())
    to_file = [] if file is None else [_file_handler(file)]
    written = to_file if only_file and to_file else [to_stream, *to_file]
    _replace_handlers([*written, *([] if tail is None else [TailHandler(tail, _json())])])
    logging.captureWarnings(True)
    adopt_library_loggers()
    structlog.configure(
        processors=[*_shared(), structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    set_log_level(level)


def set_log_level(level: str) -> None:
    """Log what is of this level or above, from now on."""
    threshold = logging.getLevelNamesMapping()[level.upper()]
    logging.getLogger().setLevel(threshold)
    chatty = threshold if threshold == logging.DEBUG else max(threshold, logging.WARNING)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(chatty)
    structlog.configure(
        **{
            **structlog.get_config(),
            "wrapper_class": structlog.make_filtering_bound_logger(threshold),
        }
    )


def adopt_library_loggers() -> None:
    """Take away the handlers that some libraries give themselves; call it again after importing them."""
    for name in _SELF_LOGGING:
        logger = logging.getLogger(name)
        for handler in list(logger.handlers):
            logger.removeHandler(handler)
        logger.propagate = True


def _replace_handlers(handlers: Sequence[logging.Handler]) -> None:
    root = logging.getLogger()
    for old in [handler for handler in root.handlers if handler.name == _HANDLER]:
        root.removeHandler(old)
        old.close()
    for handler in handlers:
        handler.name = _HANDLER
        root.addHandler(handler)


def _file_handler(file: Path) -> logging.Handler:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handler = _FileHandler(file, maxBytes=_FILE_BYTES, backupCount=_FILE_COUNT, encoding="utf-8")
    except OSError as error:
        raise ConfigError(Problem(f"{file} cannot be written: {error.strerror}", "log.file")) from error
    handler.setFormatter(_json())
    return handler


class _Unformattable(logging.Handler):
    """Reports a record that cannot be formatted as one line of JSON rather than as a bare traceback."""

    stream: Any

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the standard library's name
        at = datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z")
        line = {"timestamp": at, "level": "error", "event": "log.failed", "logger": record.name}
        line["error"] = repr(sys.exception())
        # the stream itself may be what is broken, and then there is nowhere left to report to
        with contextlib.suppress(OSError, ValueError):
            stream = self.stream or sys.stderr
            stream.write(json.dumps(line) + "\n")
            stream.flush()


class _StreamHandler(_Unformattable, logging.StreamHandler[TextIO]):
    """Writes to a stream and flushes after every line."""


class _FileHandler(_Unformattable, logging.handlers.RotatingFileHandler):
    """Writes to a file that is rotated by size."""


def _shared() -> list[Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]


def _json() -> logging.Formatter:
    # local variables in tracebacks would carry prompts and keys into the log
    frames = structlog.tracebacks.ExceptionDictTransformer(show_locals=False, max_frames=30)
    return _formatter(structlog.processors.ExceptionRenderer(frames), _render_json)


def _console(colors: bool) -> logging.Formatter:
    return _formatter(*console_processors(colors))


def _formatter(*last: Processor) -> logging.Formatter:
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=_shared(),
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
    )


def _render_json(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> str:
    first = {name: event.get(name) for name in ("timestamp", "level")} | {"event": str(event.get("event"))}
    return json.dumps(_plain(first | {name: event[name] for name in event if name not in first}, _DEPTH))


def _plain(value: object, depth: int) -> object:
    """Data that JSON can hold: finite numbers, no lone surrogates, nothing nested without end."""
    if value is None or isinstance(value, bool | int) or _is_finite(value):
        return value
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, dict) and depth:
        return {_text(str(key)): _plain(element, depth - 1) for key, element in value.items()}
    if isinstance(value, list | tuple | set | frozenset) and depth:
        return [_plain(element, depth - 1) for element in value]
    return _text(str(value) if isinstance(value, PurePath) else repr(value))


def _text(value: str) -> str:
    return value.encode("utf-8", "backslashreplace").decode()


def _is_finite(value: object) -> TypeGuard[float]:
    return isinstance(value, float) and math.isfinite(value)
