"""A process's children as Linux lists them, without a walk over all processes of the machine."""

from __future__ import annotations

import os
from pathlib import Path


def lists_children(proc: Path = Path("/proc")) -> bool:
    """Whether this kernel lists them (CONFIG_PROC_CHILDREN; all distributions have it, some sandboxes do not)."""
    return os.access(proc / "thread-self" / "children", os.R_OK)


def listed_descendants(pid: int, proc: Path = Path("/proc")) -> list[int]:
    """Process ids of the children of `pid` and of theirs; the dead that nobody has waited for are among them.

    About 10 µs for each thread of each process. A child that ends meanwhile may hide its neighbour until the next call.
    """
    found: dict[int, None] = {}
    left = [pid]
    while left:
        children = [child for child in _children(proc / str(left.pop()) / "task") if child not in {pid, *found}]
        found |= dict.fromkeys(children)
        left += children
    return list(found)


def _children(tasks: Path) -> list[int]:
    """The children that the threads of one process started."""
    try:
        threads = list(tasks.iterdir())
    except OSError:
        # the process ended
        return []
    return [int(child) for thread in threads for child in _listed(thread) if child.isdigit()]


def _listed(thread: Path) -> list[bytes]:
    try:
        return (thread / "children").read_bytes().split()
    except OSError:
        # the thread ended
        return []
