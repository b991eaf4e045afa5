"""Deletes a model's folder: whether that may be, and how it goes without ever leaving half a model behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import stat
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog

from mlxd.daemon.disk_thread import DiskStuck, DiskThread
from mlxd.daemon.downloads.places import removed_folder
from mlxd.daemon.settings import Settings
from mlxd.memory.files import reason
from mlxd.registry.spec import ModelSpec

log = structlog.stdlib.get_logger(__name__)


class NotRemovable(Exception):
    """The model's folder is not for the daemon to delete; the message says whose it is."""


class InMemory(Exception):
    """A model that needs the folder is in memory or on its way there: `model`."""

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self.model = model


@dataclass(frozen=True, slots=True)
class Use:
    """A folder that a known model reads from, and whether that is in memory or on its way there."""

    model: str
    folder: Path
    in_memory: bool


Uses = Callable[[], Iterable[Use]]


@dataclass(frozen=True, slots=True)
class Removal:
    """The folder of a model, and the folder of models that it is in."""

    folder: Path
    models_dir: Path


class ModelRemover:
    """Deletes models. `adopt` is awaited when one is gone from its place."""

    def __init__(self, hf_cache: Path | None = None, adopt: Callable[[], Awaitable[None]] | None = None) -> None:
        self._hf_cache = hf_cache
        self._adopt = adopt
        self._places = DiskThread()
        self._grave = DiskThread()
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[int]] = set()

    def plan(self, spec: ModelSpec, settings: Settings) -> Removal:
        """What deleting this model comes to. Looks at no disk. Raises NotRemovable."""
        return plan_removal(spec, settings, self._hf_cache)

    async def remove(self, model: str, removal: Removal, uses: Uses) -> int:
        """Delete a model's folder; the bytes of its files. Cancelled, that goes on.

        `uses` tells of all known models. Raises NotRemovable, InMemory and DiskStuck.
        """
        task = asyncio.create_task(self._remove(model, removal, uses), name="models.remove")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def _remove(self, model: str, removal: Removal, uses: Uses) -> int:
        async with self._turn:
            moved, size = await self._places.run(partial(take_away, removal, tuple(uses())))
            late = next((use.model for use in uses() if use.in_memory and use.folder == removal.folder), None)
            if late is not None:  # a request asked for it just now
                await self._places.run(partial(moved.rename, removal.folder))
                raise InMemory(late)
        log.info("model.deleted", model=model, path=str(removal.folder), bytes=size)
        if self._adopt is not None:
            await self._adopt()
        with contextlib.suppress(DiskStuck):  # what is left goes at the next start
            await self._grave.run(partial(bury, moved, removal))
        return size


def plan_removal(spec: ModelSpec, settings: Settings, hf_cache: Path | None) -> Removal:
    """What deleting this model comes to. Looks at no disk. Raises NotRemovable."""
    if spec.adapter is not None:
        raise NotRemovable(
            f"{spec.name} is an adapter of the configuration, not a folder of its own; take it out there"
        )
    if hf_cache is not None and spec.path.is_relative_to(hf_cache):
        message = f"{spec.name} is in the Hugging Face cache, which others use too; delete it there with `hf cache rm`"
        raise NotRemovable(message)
    homes = [folder for folder in settings.models.dirs if folder in spec.path.parents]
    if not homes:
        message = (
            f"{spec.path} is in none of models.dirs; take {spec.name} out of the configuration and delete it yourself"
        )
        raise NotRemovable(message)
    held = next((folder for folder in settings.models.dirs if folder.is_relative_to(spec.path)), None)
    if held is not None:
        raise NotRemovable(f"{held} of models.dirs is within {spec.path}; take it out of the configuration first")
    named = _named_in(spec.name, settings)
    if named is not None:
        message = f"the configuration names {spec.name} ({named}); take it out there, `mlxd reload`, then delete it"
        raise NotRemovable(message)
    return Removal(spec.path, max(homes, key=lambda folder: len(folder.parts)))


def take_away(removal: Removal, uses: Iterable[Use]) -> tuple[Path, int]:
    """Rename the folder to where nobody looks for models; that place, and the bytes of its files.

    Blocks. Raises InMemory, and NotRemovable when another model is within, or the disk does not let it.
    """
    folder, home = removal.folder, removal.models_dir
    if not folder.parent.resolve().is_relative_to(home.resolve()):
        raise NotRemovable(f"{folder.parent} is a link out of {home}; delete the model yourself, where it is")
    for use in uses:
        _check_use(folder, use)
    grave = removed_folder(home)
    moved = grave / secrets.token_hex(8)
    try:
        size = _size(folder)
        grave.mkdir(parents=True, exist_ok=True)
        folder.rename(moved)
    except OSError as error:
        raise NotRemovable(f"{folder} cannot be deleted: {reason(error)}") from error
    return moved, size


def bury(moved: Path, removal: Removal) -> None:
    """Delete what was taken away, and the folder that it was in if nothing else is there. Blocks."""
    if removal.folder.parent != removal.models_dir:
        with contextlib.suppress(OSError):  # others are in it
            removal.folder.parent.rmdir()
    if moved.is_symlink():
        moved.unlink()
    else:
        shutil.rmtree(moved, ignore_errors=True)  # what is left goes at the next start


def _check_use(folder: Path, use: Use) -> None:
    """Raises InMemory and NotRemovable for a model that would lose its files. A link is nobody's files."""
    real, used = Path(os.path.realpath(folder)), Path(os.path.realpath(use.folder))
    is_same = use.folder == folder or (used == real and not folder.is_symlink())
    if use.in_memory and is_same:
        raise InMemory(use.model)
    if real in used.parents and not folder.is_symlink():
        raise NotRemovable(f"{use.model} is in {use.folder}, within {folder}; delete that first")


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
