"""Deletes a model's folder: whether that may be, and how it goes without ever leaving half a model behind."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mlxd.daemon.disk_thread import DiskThread
from mlxd.daemon.downloads.places import removed_folder
from mlxd.daemon.settings import Settings
from mlxd.memory.files import reason
from mlxd.registry.spec import ModelSpec


class NotRemovable(Exception):
    """The model's folder is not for the daemon to delete; the message says whose it is."""


@dataclass(frozen=True, slots=True)
class Removal:
    """The folder of a model, and the folder of models that it is in."""

    folder: Path
    models_dir: Path


class ModelRemover:
    """Deletes models, one after the other. `adopt` is awaited when one is gone from its place."""

    def __init__(self, hf_cache: Path | None = None, adopt: Callable[[], Awaitable[None]] | None = None) -> None:
        self._hf_cache = hf_cache
        self._adopt = adopt
        self._disk = DiskThread()

    def plan(self, spec: ModelSpec, settings: Settings) -> Removal:
        """What deleting this model comes to. Looks at no disk. Raises NotRemovable."""
        return plan_removal(spec, settings, self._hf_cache)

    async def remove(self, removal: Removal) -> int:
        """Delete a folder; the bytes of its files. Raises NotRemovable and DiskStuck."""
        freed = await self._disk.run(partial(remove, removal))
        if self._adopt is not None:
            await self._adopt()
        return freed


def plan_removal(spec: ModelSpec, settings: Settings, hf_cache: Path | None) -> Removal:
    """What deleting this model comes to. Looks at no disk. Raises NotRemovable."""
    named = _named_in(spec.name, settings)
    if spec.adapter is not None:
        raise NotRemovable(
            f"{spec.name} is an adapter of the configuration, not a folder of its own; take it out there"
        )
    if hf_cache is not None and spec.path.is_relative_to(hf_cache):
        message = f"{spec.name} is in the Hugging Face cache, which others use too; delete it there with `hf cache rm`"
        raise NotRemovable(message)
    home = next((folder for folder in settings.models.dirs if folder in spec.path.parents), None)
    if home is None:
        message = (
            f"{spec.path} is in none of models.dirs; take {spec.name} out of the configuration and delete it yourself"
        )
        raise NotRemovable(message)
    if named is not None:
        message = f"the configuration names {spec.name} ({named}); take it out there, `mlxd reload`, then delete it"
        raise NotRemovable(message)
    return Removal(spec.path, home)


def remove(removal: Removal) -> int:
    """Delete the folder; the bytes of its files. It is gone from its place first, all at once.

    Blocks. Raises NotRemovable when the disk does not let it.
    """
    folder, home = removal.folder, removal.models_dir
    if not folder.parent.resolve().is_relative_to(home.resolve()):
        raise NotRemovable(f"{folder.parent} is a link out of {home}; delete the model yourself, where it is")
    grave = removed_folder(home)
    try:
        size = _size(folder)
        grave.mkdir(parents=True, exist_ok=True)
        moved = grave / secrets.token_hex(8)
        folder.rename(moved)
    except OSError as error:
        raise NotRemovable(f"{folder} cannot be deleted: {reason(error)}") from error
    if folder.parent != home:
        with contextlib.suppress(OSError):  # others are in it
            folder.parent.rmdir()
    if moved.is_symlink():
        moved.unlink()
    else:
        shutil.rmtree(moved, ignore_errors=True)  # what is left goes at the next start
    return size


def _named_in(name: str, settings: Settings) -> str | None:
    """The key by which the configuration needs this model."""
    if settings.model_for(name) is not None:
        return "[[model]]"
    if name == settings.models.default:
        return "models.default"
    if name in settings.models.preload:
        return "models.preload"
    drafts = (settings.engine_for(entry.name).draft for entry in settings.model)
    return "engine.draft" if name in drafts else None


def _size(folder: Path) -> int:
    """Bytes of the files in a folder; links are none. Raises OSError."""
    if folder.is_symlink():
        return 0
    size = 0
    for place, _, names in os.walk(folder):
        facts = [(Path(place) / name).lstat() for name in names]
        size += sum(fact.st_size for fact in facts if stat.S_ISREG(fact.st_mode))
    return size
