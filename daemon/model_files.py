"""What a model folder's files look like from outside: cheap to read, and different when a file is."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath

Stamp = tuple[tuple[str, int, int], ...]
"""Name, bytes and time in nanoseconds of each file of a folder, by name."""

_LOADED = frozenset({".safetensors", ".json", ".jinja", ".model", ".tiktoken", ".py", ".npz", ".bin", ".gguf"})
_LOADED_NAMES = frozenset({"merges.txt", "vocab.txt"})
_DANGLING = (-1, 0)


def folder_stamp(folder: Path) -> Stamp:
    """All files of a folder, hidden ones too: a copy under way often has one. Links are followed. Raises OSError."""
    with os.scandir(folder) as entries:
        return tuple(sorted(_facts(entries)))


def loaded_part(stamp: Stamp) -> Stamp:
    """The files that a load may read."""
    return tuple(facts for facts in stamp if _is_loaded(facts[0]))


def _is_loaded(name: str) -> bool:
    return not name.startswith(".") and (name in _LOADED_NAMES or PurePath(name).suffix in _LOADED)


def _facts(entries: Iterable[os.DirEntry[str]]) -> Iterator[tuple[str, int, int]]:
    for entry in entries:
        try:
            status = entry.stat()
        except FileNotFoundError:
            yield (entry.name, *_DANGLING)
            continue
        if stat.S_ISREG(status.st_mode):
            yield entry.name, status.st_size, status.st_mtime_ns
