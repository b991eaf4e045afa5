"""The layout of the Hugging Face hub's cache: models--org--name/{refs,snapshots,blobs}."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mlxd.memory.files import BadFile, read_bounded

_PREFIX = "models--"
_MAX_REF_BYTES = 256


def cached_repos(cache: Path) -> Iterator[tuple[str, Path]]:
    """Each cached model repo with its current snapshot, by name; nothing for a cache that cannot be read."""
    for folder in sorted(cache.glob(f"{_PREFIX}*")):
        # a repo name holds no "--" itself
        repo = folder.name.removeprefix(_PREFIX).replace("--", "/")
        snapshot = snapshot_of(cache, repo)
        if snapshot is not None:
            yield repo, snapshot


def snapshot_of(cache: Path, repo: str) -> Path | None:
    """The snapshot folder of a cached repo: that of its main branch, else the only one there is, else None."""
    folder = repo_folder(cache, repo)
    try:
        commit = read_bounded(folder / "refs" / "main", _MAX_REF_BYTES).decode("ascii").strip()
    except (BadFile, UnicodeDecodeError):
        return _only_snapshot(folder / "snapshots")
    if not commit.isalnum():
        return None
    snapshot = folder / "snapshots" / commit
    return snapshot if _is_folder(snapshot) else None


def repo_folder(cache: Path, repo: str) -> Path:
    """Where the cache keeps a repo, if it has it."""
    return cache / f"{_PREFIX}{repo.replace('/', '--')}"


def _only_snapshot(snapshots: Path) -> Path | None:
    try:
        found = [path for path in snapshots.iterdir() if path.is_dir()]
    except OSError:
        return None
    return found[0] if len(found) == 1 else None


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False
