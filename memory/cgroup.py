"""The control groups this process is in (Linux, version 2 and version 1): their limits and what is left of them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

# version 1 has no word for "no limit": it reports the largest page-aligned number
_UNLIMITED = 1 << 60
# of the longest number the kernel writes
_DIGITS = 20


@dataclass(frozen=True, slots=True)
class _Files:
    """How a version of control groups calls what is read here; counters include the groups inside."""

    limits: tuple[str, ...]
    usage: str
    file_pages: frozenset[bytes]


# memory.high kills nobody, but above it every allocation is slowed down to a standstill
_VERSIONS: Mapping[str, _Files] = {
    "cgroup2": _Files(("memory.max", "memory.high"), "memory.current", frozenset({b"inactive_file", b"active_file"})),
    "cgroup": _Files(
        ("memory.limit_in_bytes",),
        "memory.usage_in_bytes",
        frozenset({b"total_inactive_file", b"total_active_file"}),
    ),
}


@dataclass(frozen=True, slots=True)
class Group:
    """A group's folder; `kind` is the file system's, "cgroup2" or "cgroup". `own` when the process is right in it.

    A group may vanish or be limited otherwise while the process runs: what cannot be read is not stated.
    """

    kind: str
    folder: Path
    own: bool

    def limit(self) -> int | None:
        """The group's limit in bytes, None when it states none."""
        limits = [
            limit for name in _VERSIONS[self.kind].limits if (limit := _read_number(self.folder / name)) is not None
        ]
        return min((limit for limit in limits if limit < _UNLIMITED), default=None)

    def used(self) -> int | None:
        """Bytes that count against the limit and cannot be dropped, None when the group does not tell.

        File pages can be dropped, the active ones too: a model's file that was read twice is active, and would
        else count as used for as long as nobody wants its place.
        """
        files = _VERSIONS[self.kind]
        usage, stat = _read_number(self.folder / files.usage), _read(self.folder / "memory.stat")
        if usage is None or stat is None:
            return usage
        counters = (line.partition(b" ")[::2] for line in stat.splitlines())
        pages = [_number(value) or 0 for name, value in counters if name in files.file_pages]
        return max(0, usage - sum(pages))


def memory_groups(proc: Path = Path("/proc")) -> tuple[Group, ...]:
    """The own groups and all their ancestors that can be seen, of both versions; empty without control groups.

    A process may be moved later, so this holds for the groups it was started in.
    """
    try:
        groups = (proc / "self" / "cgroup").read_text(errors="surrogateescape")
        mounts = (proc / "self" / "mountinfo").read_text(errors="surrogateescape")
    except OSError:
        return ()
    paths = _own_groups(groups)
    return tuple(
        Group(mount.kind, folder, own=depth == 0)
        for mount in _memory_mounts(mounts)
        if mount.kind in paths
        for depth, folder in enumerate(_folders(mount, paths[mount.kind]))
    )


@dataclass(frozen=True, slots=True)
class Allowance:
    """Of a set of groups: the lowest limit, and the least that is left below any limit. Bytes, None without limit.

    `tightest` is what is left and the limit of the group that has the least left; (0, 0) when nobody tells.
    """

    limit: int | None = None
    tightest: tuple[int, int] = (0, 0)

    @property
    def available(self) -> int | None:
        """Bytes left below the limit that comes first, None when nothing limits or nobody tells what is used."""
        available, limit = self.tightest
        return available if limit else None


def allowance(groups: Sequence[Group]) -> Allowance:
    """What the groups allow now. A limit whose group does not tell what it uses leaves nothing to be known."""
    limits = [(group, limit) for group in groups if (limit := group.limit()) is not None]
    left = [(max(0, limit - used), limit) for group, limit in limits if (used := group.used()) is not None]
    return Allowance(min((limit for _, limit in limits), default=None), min(left, default=(0, 0)))


def pressure_file(groups: Sequence[Group]) -> Path | None:
    """Where the stalls of the own group stand; None for the root group, whose file tells of the whole machine.

    The root of the hierarchy has no `cgroup.type`; a container's topmost group looks like a root, but has one.
    """
    own = (group.folder for group in groups if group.own and group.kind == "cgroup2")
    return next((folder / "memory.pressure" for folder in own if os.access(folder / "cgroup.type", os.F_OK)), None)


@dataclass(frozen=True, slots=True)
class _Mount:
    kind: str
    root: PurePosixPath
    point: Path


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


def _read(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except OSError:
        return None


def _read_number(file: Path) -> int | None:
    return _number(_read(file) or b"")


def _number(text: bytes) -> int | None:
    text = text.strip()
    return int(text) if text.isdigit() and len(text) <= _DIGITS else None
