"""What is wrong with a configuration: every problem, with its place and its key."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping

from msgspec import Struct

KeyPath = tuple[str | int, ...]
"""A key as a path: names of tables and keys, and indices into arrays."""

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_SHOWN = 60


class Problem(Struct, frozen=True):
    """One thing that is wrong. `source` is a file, a flag or an environment variable; lines count from 1."""

    message: str
    key: str | None = None
    source: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        """One line, as in `mlxd.toml:3: server.port: expected …`."""
        place = f"{self.source}:{self.line}" if self.line else self.source
        return ": ".join(part for part in (place, self.key, self.message) if part)


class ConfigError(Exception):
    """The configuration is invalid; `problems` has everything that was found, never nothing."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


class Report:
    """Collects the problems of one source, and knows the line of each of its keys."""

    def __init__(self, source: str | None, lines: Mapping[KeyPath, int] | None = None) -> None:
        self.problems: list[Problem] = []
        self._source = source
        self._lines = lines or {}
        self._names: dict[KeyPath, KeyPath] = {}

    def add(self, path: KeyPath, message: str) -> None:
        """Note a problem with the value at this path."""
        self.problems.append(Problem(message, self.key(path) or None, self._source, self.line(path)))

    def rename(self, path: KeyPath, name: str) -> None:
        """Call the array element at this path by its name rather than by its index."""
        self._names[path] = (*path[:-1], name)

    def key(self, path: KeyPath) -> str:
        """The path as text, with the names of array elements that have one."""
        for depth in range(len(path), 0, -1):
            if path[:depth] in self._names:
                return dotted((*self._names[path[:depth]], *path[depth:]))
        return dotted(path)

    def unknown(self, path: KeyPath, valid: Collection[str], elsewhere: Collection[str] = ()) -> None:
        """Note a key that does not exist; `valid` are its table's keys, `elsewhere` full names in other tables."""
        self.add(path, f"unknown key; {suggestion(str(path[-1]), valid, elsewhere)}")

    def lines(self) -> dict[str, int]:
        """The line of every key and table that is written in the file, by its name as text."""
        return {self.key(path): line for path, line in self._lines.items()}

    def line(self, path: KeyPath) -> int | None:
        """The line of this key, or of the innermost table around it that is written in the file."""
        while path and path not in self._lines:
            path = path[:-1]
        return self._lines.get(path)


def dotted(path: KeyPath) -> str:
    """A key path as text, as in `model[0].sampling.top_p`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += ("." if text else "") + bare_or_quoted(part)
    return text


def bare_or_quoted(name: str) -> str:
    """A name as TOML writes it in a key."""
    return name if _BARE.fullmatch(name) else f'"{name}"'


def suggestion(name: str, valid: Collection[str], elsewhere: Collection[str] = ()) -> str:
    """What was probably meant by an unknown name: the same key of another table, or the nearest name."""
    moved = sorted(key for key in elsewhere if key.endswith(f".{name.lower()}"))
    if moved:
        return f"did you mean {' or '.join(moved)}?"
    near = difflib.get_close_matches(name.lower(), valid, n=1, cutoff=0.5)
    if near:
        return f"did you mean {near[0]}?"
    return f"expected one of {', '.join(sorted(valid))}" if valid else "nothing is expected here"


def shown(value: object) -> str:
    """A value as it was written, shortened, for a message."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list | tuple):
        return "an array"
    text = f'"{value}"' if isinstance(value, str) else str(value)
    text = text.encode("unicode_escape").decode("ascii") if not text.isprintable() else text
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
