"""The line of every key in a TOML text that has already been parsed without an error."""

from __future__ import annotations

import re
from collections import Counter

import tomli

from mlxd.daemon.config_errors import KeyPath

MAX_DEPTH = 32
"""Deepest nesting of keys that is read; beyond it every walk over the values would need its own guard."""

_BLANK = re.compile(r"(?:[ \t\n]|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_KEY = re.compile(r"""[A-Za-z0-9_-]+|"(?:\\.|[^"\\])*"|'[^']*'""")
_STRING = re.compile(
    r'"{3}(?:\\.|[^\\])*?"{3,5}|' r"'{3}.*?'{3,5}|" r"""\"(?:\\.|[^"\\])*\"|'[^']*'""",
    re.DOTALL,
)
_SCALAR = re.compile(r"[^,\]}\n#]*")


def key_lines(text: str) -> dict[KeyPath, int]:
    """Map each key path, array elements and tables included, to its line, counted from 1.

    Raises RecursionError beyond MAX_DEPTH.
    """
    return _Scanner(text.replace("\r\n", "\n")).document()


class _Scanner:
    """Walks valid TOML once; the grammar is taken on trust."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._counted = 0
        self._line = 1
        self._lines: dict[KeyPath, int] = {}
        self._entries: Counter[KeyPath] = Counter()

    def document(self) -> dict[KeyPath, int]:
        table: KeyPath = ()
        self._skip(_BLANK)
        while self._at < len(self._text):
            if self._peek("["):
                table = self._header()
            else:
                self._pair(table)
            self._skip(_BLANK)
        return self._lines

    def _header(self) -> KeyPath:
        is_entry = self._peek("[[")
        self._at += 2 if is_entry else 1
        parents, name = self._key_parts()
        table: KeyPath = ()
        for parent in parents:
            self._note((*table, parent))
            table = self._last_entry((*table, parent))
        table = (*table, name)
        if is_entry:
            self._note(table)
            self._entries[table] += 1
            table = self._last_entry(table)
        self._note(table)
        self._at += 2 if is_entry else 1
        return table

    def _last_entry(self, table: KeyPath) -> KeyPath:
        count = self._entries[table]
        return (*table, count - 1) if count else table

    def _pair(self, table: KeyPath) -> None:
        start = self._at
        parents, name = self._key_parts()
        end, self._at = self._at, start
        for depth in range(len(parents)):
            self._note((*table, *parents[: depth + 1]))
        path = (*table, *parents, name)
        self._note(path)
        self._at = end + 1
        self._skip(_BLANK)
        self._value(path)

    def _key_parts(self) -> tuple[list[str], str]:
        parts = []
        while True:
            self._skip(_SPACE)
            parts.append(_key_text(self._take(_KEY)))
            self._skip(_SPACE)
            if not self._peek("."):
                return parts[:-1], parts[-1]
            self._at += 1

    def _value(self, path: KeyPath) -> None:
        if self._peek("{"):
            self._members(path, "}")
        elif self._peek("["):
            self._members(path, "]")
        elif self._peek('"') or self._peek("'"):
            self._skip(_STRING)
        else:
            self._skip(_SCALAR)

    def _members(self, path: KeyPath, closing: str) -> None:
        self._at += 1
        index = 0
        self._skip(_BLANK)
        while not self._peek(closing):
            if closing == "}":
                self._pair(path)
            else:
                self._note((*path, index))
                self._value((*path, index))
                index += 1
            self._skip(_BLANK)
            if self._peek(","):
                self._at += 1
                self._skip(_BLANK)
        self._at += 1

    def _note(self, path: KeyPath) -> None:
        if len(path) > MAX_DEPTH:
            raise RecursionError(f"nested deeper than {MAX_DEPTH} levels")
        self._line += self._text.count("\n", self._counted, self._at)
        self._counted = self._at
        self._lines.setdefault(path, self._line)

    def _peek(self, prefix: str) -> bool:
        return self._text.startswith(prefix, self._at)

    def _skip(self, pattern: re.Pattern[str]) -> None:
        self._take(pattern)

    def _take(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._at)
        if match is None:
            raise ValueError(f"not TOML at offset {self._at}")
        self._at = match.end()
        return match[0]


def _key_text(raw: str) -> str:
    if not raw.startswith(('"', "'")):
        return raw
    [text] = tomli.loads(f"{raw} = 0")
    return text
