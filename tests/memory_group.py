"""A real control group for child processes, with a limit; skipped where the machine does not allow one."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlxd.memory.cgroup import memory_groups

LIMITS = {"cgroup2": "memory.max", "cgroup": "memory.limit_in_bytes"}


@contextlib.contextmanager
def limited_group(limit: int) -> Iterator[Path]:
    """The folder of a new group beside or below the own one; whoever writes its id to `cgroup.procs` is in it.

    All its processes have to end before this does.
    """
    folder = _made(limit)
    try:
        yield folder
    finally:
        folder.rmdir()


def _made(limit: int) -> Path:
    reasons = ["no control group is mounted"]
    for group in (group for group in memory_groups() if group.own):
        folder = group.folder / f"mlxd-test-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        try:
            folder.mkdir()
        except OSError as error:
            reasons.append(str(error))
            continue
        try:
            (folder / LIMITS[group.kind]).write_text(str(limit))
        except OSError as error:
            folder.rmdir()
            reasons.append(str(error))
        else:
            return folder
    pytest.skip(f"no control group with a memory limit can be made here: {reasons[-1]}")


@contextlib.contextmanager
def children_start_in(folder: Path) -> Iterator[None]:
    """Processes that are started meanwhile are in the group from their first byte on."""
    home = next(group.folder for group in memory_groups() if group.own and group.folder == folder.parent)
    (folder / "cgroup.procs").write_text(str(os.getpid()))
    try:
        yield
    finally:
        (home / "cgroup.procs").write_text(str(os.getpid()))
