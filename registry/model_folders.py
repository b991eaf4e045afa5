"""Walks the folders that models are in: which folders below are models, and what could not be read."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator
from pathlib import Path

from mlxd.memory.files import reason
from mlxd.memory.model_config import CONFIG_FILE

LEVELS = 2
"""How deep below a folder of models a model may lie."""


class FolderWalk:
    """Lists model folders. `known` ones count as found where it cannot be seen whether they are there.

    `notes` are sentences about what was odd, `unreadable` are the folders that could not be looked into.
    """

    def __init__(self, known: Collection[Path] = ()) -> None:
        self.notes: list[str] = []
        self.unreadable: set[Path] = set()
        self._known = sorted(known)

    def models(self, folder: Path) -> Iterator[Path]:
        """The model folders below a folder, by name; hidden and temporary ones are passed over. Raises nothing."""
        return self._below(folder, LEVELS)

    def can_list(self, folder: Path) -> bool:
        """Whether a folder can be listed; if not, it is added to `unreadable`, without a note."""
        try:
            with os.scandir(folder):
                return True
        except OSError:
            self.unreadable.add(folder)
            return False

    def _below(self, folder: Path, levels: int) -> Iterator[Path]:
        try:
            with os.scandir(folder) as entries:
                names = sorted(entry.name for entry in entries if not entry.name.startswith("."))
        except OSError as error:
            yield from self._unread(folder, levels, error)
            return
        for name in names:
            yield from self._at(folder / name, levels - 1)

    def _at(self, path: Path, levels: int) -> Iterator[Path]:
        """The folder itself if it is a model, else those at most so many levels below it."""
        try:
            is_folder = stat.S_ISDIR(path.stat().st_mode)
            is_model = is_folder and _is_there(path / CONFIG_FILE)
        except FileNotFoundError as error:  # a link that leads nowhere
            self._note(path, error)
            return
        except OSError as error:
            yield from self._unread(path, levels, error)
            return
        if not is_folder or not self._may_be_listed(path):
            return
        if is_model:
            yield path
        elif levels:
            yield from self._below(path, levels)

    def _unread(self, folder: Path, levels: int, error: OSError) -> Iterator[Path]:
        self.unreadable.add(folder)
        self._note(folder, error)
        yield from (path for path in self._known if _is_within(path, folder, levels))

    def _may_be_listed(self, path: Path) -> bool:
        # 1. a link to a folder that holds it would list models twice
        # 2. a name that cannot be sent in a request cannot be a model's
        if path.is_symlink() and path.resolve() in (path.parent.resolve(), *path.parent.resolve().parents):
            self.notes.append(f"{shown_path(path)} is a link to a folder that holds it")
            return False
        if not path.name.isprintable():
            self.notes.append(f"{shown_path(path)} is not listed: its name is not printable UTF-8 text")
            return False
        return True

    def _note(self, path: Path, error: OSError) -> None:
        self.notes.append(f"{shown_path(path)} cannot be read: {reason(error)}")


def lies_in(path: Path, folders: Collection[Path]) -> bool:
    """Whether the path is one of the folders, or somewhere below one."""
    return any(folder in folders for folder in (path, *path.parents))


def shown_path(path: Path) -> str:
    """A path as it may appear in a message."""
    text = str(path)
    return text if text.isprintable() else ascii(text)


def _is_there(path: Path) -> bool:
    """Raises OSError when that cannot be seen."""
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    return True


def _is_within(path: Path, folder: Path, levels: int) -> bool:
    if not path.is_relative_to(folder):
        return False
    parts = path.relative_to(folder).parts
    return len(parts) <= levels and not any(part.startswith(".") for part in parts)
