"""Memory limits of the control groups this process is in (Linux, version 2 and version 1)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

# version 1 has no word for "no limit": it reports the largest page-aligned number
_UNLIMITED = 1 << 60
_LIMIT_FILES = {"cgroup2": "memory.max", "cgroup": "memory.limit_in_bytes"}


@dataclass(frozen=True, slots=True)
class _Mount:
    kind: str
    root: PurePosixPath
    point: Path


def limit_files(proc: Path = Path("/proc")) -> tuple[Path, ...]:
    """The limit files of the own cgroups and all their ancestors that can be seen; empty without cgroups.

    A process may be moved later, so this holds for the groups it was started in.
    """
    try:
        groups = (proc / "self" / "cgroup").read_text(errors="surrogateescape")
        mounts = (proc / "self" / "mountinfo").read_text(errors="surrogateescape")
    except OSError:
        return ()
    paths = _own_groups(groups)
    return tuple(
        folder / _LIMIT_FILES[mount.kind]
        for mount in _memory_mounts(mounts)
        if mount.kind in paths
        for folder in _folders(mount, paths[mount.kind])
    )


def lowest_limit(files: Sequence[Path]) -> int | None:
    """The lowest limit in bytes that any of the files states, None when none does."""
    limits = [limit for file in files if (limit := _read_limit(file)) is not None]
    return min(limits, default=None)


def _own_groups(text: str) -> dict[str, PurePosixPath]:
    """Kind of hierarchy to the path of the own group in it, of those that control memory."""
    groups = {}
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            groups["cgroup2"] = PurePosixPath(path)
        elif "memory" in controllers.split(","):
            groups["cgroup"] = PurePosixPath(path)
    return groups


def _memory_mounts(text: str) -> Iterator[_Mount]:
    for line in text.splitlines():
        before, separator, after = line.partition(" - ")
        fields, source = before.split(" "), after.split(" ")
        if not separator or len(fields) < 5 or len(source) < 3:  # noqa: PLR2004 - the fixed columns of mountinfo
            continue
        kind = source[0]
        if kind == "cgroup2" or (kind == "cgroup" and "memory" in source[2].split(",")):
            yield _Mount(kind, PurePosixPath(_unescaped(fields[3])), Path(_unescaped(fields[4])))


def _folders(mount: _Mount, group: PurePosixPath) -> list[Path]:
    """The group's folder and its parents up to the mount; only the mount when the group lies outside it."""
    inside = group.is_relative_to(mount.root) and ".." not in group.parts
    relative = group.relative_to(mount.root) if inside else PurePosixPath()
    return [mount.point / part for part in (relative, *relative.parents)]


def _unescaped(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def _read_limit(file: Path) -> int | None:
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    if not text.isdecimal():
        return None
    limit = int(text)
    return limit if limit < _UNLIMITED else None
