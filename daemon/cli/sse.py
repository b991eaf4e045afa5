"""Reads a stream of server-sent events from bytes that come in any pieces."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Comment:
    """A line that keeps the stream alive and may tell about progress."""

    text: str


@dataclass(frozen=True, slots=True)
class Message:
    """An event: its type, "message" unless named, and its data."""

    event: str
    data: str


class SseParser:
    """Takes bytes, gives events. An event that the stream does not finish is never given."""

    def __init__(self) -> None:
        self._rest = b""
        self._event = ""
        self._data: list[str] = []
        self._at_start = True

    def feed(self, chunk: bytes) -> Iterator[Comment | Message]:
        """The comments and events that these bytes complete."""
        for line in self._lines(chunk):
            if not line:
                yield from self._finish()
            elif line.startswith(":"):
                yield Comment(line[1:].strip())
            else:
                self._field(line)

    def _lines(self, chunk: bytes) -> Iterator[str]:
        """Complete lines. Splitting bytes at line ends never splits a character."""
        # only the last byte of what was kept can be part of a line end that this chunk completes
        search_from = max(0, len(self._rest) - 1)
        self._rest += chunk
        start = 0
        for end in _LINE_END.finditer(self._rest, search_from):
            # a \r at the very end may be half of a \r\n
            if end.group() == b"\r" and end.end() == len(self._rest):
                break
            yield self._decoded(self._rest[start : end.start()])
            start = end.end()
        self._rest = self._rest[start:]

    def _decoded(self, line: bytes) -> str:
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(_BOM)
        return line.decode("utf-8", "replace")

    def _field(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value

    def _finish(self) -> Iterator[Message]:
        if self._data:
            yield Message(self._event or "message", "\n".join(self._data))
        self._event = ""
        self._data = []
