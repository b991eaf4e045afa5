"""The log as text for a terminal. What is logged may come from anybody, and must not steer the terminal."""

from __future__ import annotations

import io
import re
from collections.abc import MutableMapping
from typing import Any, TextIO

import structlog
from structlog.typing import ExcInfo, Processor

# Of text that has lines.
_LINED = frozenset({"exception", "stack"})

_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_CONTROLS_IN_LINES = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def console_processors(colors: bool) -> list[Processor]:
    """What makes a line of an event."""
    return [_show_controls, structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=_traceback)]


def _show_controls(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Write control characters as Python does, so that they neither act nor make a line of their own."""
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = (_CONTROLS_IN_LINES if name in _LINED else _CONTROLS).sub(_escaped, value)
    return event


def _traceback(stream: TextIO, exc_info: ExcInfo) -> None:
    found = io.StringIO()
    structlog.dev.plain_traceback(found, exc_info)
    stream.write(_CONTROLS_IN_LINES.sub(_escaped, found.getvalue()))


def _escaped(found: re.Match[str]) -> str:
    return repr(found[0])[1:-1]
