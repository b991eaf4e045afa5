"""Reads memory from the kernel, and MLX's counters once something else has loaded MLX."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Protocol

import psutil

from mlxd.memory.cgroup import allowance, memory_groups, pressure_file
from mlxd.memory.darwin import DarwinKernel, default_working_set
from mlxd.memory.footprint import Footprint
from mlxd.memory.outside import Strain
from mlxd.memory.pressure_stall import StallFiles, is_short
from mlxd.memory.process_tree import listed_descendants, lists_children

KIB = 1 << 10
_COUNTED = re.compile(rb"^Rss(?:Anon|Shmem):\s+(\d{1,18}) kB$", re.MULTILINE)


class MemoryProbe(Protocol):
    """Where readings come from. All methods may be called from any thread."""

    def sample(self) -> Footprint:
        """Measure now."""
        ...

    def metal_limit(self) -> int | None:
        """Bytes Metal recommends as working set, None without Metal."""
        ...

    def wired_limit(self) -> int | None:
        """iogpu.wired_limit_mb in bytes where somebody set it, else None."""
        ...


class SystemProbe:
    """The real machine. One sample costs well under a millisecond.

    Linux counts RssAnon and RssShmem (file pages are dropped rather than killed for), macOS the physical
    footprint; where neither is told, the resident size. Children are added whole: pages they share count in each.
    The proportional size of `smaps_rollup` would not, but the kernel walks all pages for it: 2 ms for 200 MB, and
    nothing that holds a model is that small.
    `children` gives their process ids, `elsewhere` what MLX counts in them: active, cached and most active bytes.
    What the operating system says of pressure: PSI on Linux, the pressure level on macOS.
    MLX is never imported here: its counters are 0 until another part of the process has loaded it.
    """

    def __init__(
        self,
        *,
        proc: Path = Path("/proc"),
        darwin: DarwinKernel | None = None,
        children: Callable[[], Iterable[int]] | None = None,
    ) -> None:
        self._proc = proc
        self._darwin = DarwinKernel.load() if darwin is None and sys.platform == "darwin" else darwin
        self._children = children or descendants
        self.elsewhere: Callable[[], tuple[int, int, int]] = lambda: (0, 0, 0)
        self._groups = memory_groups(proc)
        self._stalls = StallFiles(proc / "pressure" / "memory", pressure_file(self._groups))

    def sample(self) -> Footprint:
        """Measure now. Raises OSError or psutil.Error when the own process cannot be read."""
        machine, group = psutil.virtual_memory(), allowance(self._groups)
        active, cache, peak = map(sum, zip(_mlx_counters(), self.elsewhere(), strict=True))
        return Footprint(
            bytes=self._process_bytes(os.getpid()) + sum(map(self._child_bytes, self._children())),
            mlx_active=active,
            mlx_cache=cache,
            machine_total=machine.total,
            machine_available=machine.available,
            cgroup_limit=group.limit,
            mlx_peak=peak,
            cgroup_available=group.available,
            strain=self.strain(
                machine_short=is_short(machine.available, machine.total), group_short=is_short(*group.tightest)
            ),
        )

    def metal_limit(self) -> int | None:
        """Metal's own number once MLX is loaded; before that macOS's usual share of the machine."""
        if (core := _loaded_mlx()) is not None:
            recommended: int | None = core.device_info(core.gpu).get("max_recommended_working_set_size")
            return recommended
        if self._darwin is None:
            return None
        return self.wired_limit() or default_working_set(psutil.virtual_memory().total)

    def wired_limit(self) -> int | None:
        """iogpu.wired_limit_mb in bytes where somebody set it, else None."""
        return None if self._darwin is None else self._darwin.wired_limit()

    def strain(self, *, machine_short: bool, group_short: bool) -> Strain:
        """What the operating system says of memory pressure; on Linux that counts only where something is short."""
        if self._darwin is not None:
            return self._darwin.strain()
        return self._stalls.strain(machine_short=machine_short, group_short=group_short)

    def _child_bytes(self, pid: int) -> int:
        try:
            return self._process_bytes(pid)
        except (psutil.Error, OSError):
            # it ended between the walk and the reading
            return 0

    def _process_bytes(self, pid: int) -> int:
        counted = self._status_bytes(pid) if self._darwin is None else self._darwin.phys_footprint(pid)
        return psutil.Process(pid).memory_info().rss if counted is None else counted

    def _status_bytes(self, pid: int) -> int | None:
        try:
            status = (self._proc / str(pid) / "status").read_bytes()
        except FileNotFoundError:
            return None
        sizes = [int(size) * KIB for size in _COUNTED.findall(status)]
        return sum(sizes) if sizes else None


def process_bytes(pid: int) -> int:
    """What another process uses now, as a SystemProbe counts it; 0 when it is gone."""
    return SystemProbe(children=list)._child_bytes(pid)  # noqa: SLF001 - the same counting


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or dead and not yet waited for."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def descendants() -> list[int]:
    """Process ids of all children and their children; empty where the process table may not be read.

    Where the kernel does not list them this walks the process table, about 40 µs per process of the machine.
    """
    if not _has_children():
        return []
    if lists_children():
        return listed_descendants(os.getpid())
    try:
        return [child.pid for child in psutil.Process().children(recursive=True)]
    except psutil.AccessDenied:
        return []


def _has_children() -> bool:
    """Whether the walk is worth it; leaves the exit status of ended children for whoever waits for it."""
    if not hasattr(os, "waitid"):
        return True
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _loaded_mlx() -> ModuleType | None:
    """MLX when it is loaded; a module that another thread is still importing does not count."""
    core = sys.modules.get("mlx.core")
    return core if core is not None and hasattr(core, "get_cache_memory") and hasattr(core, "device_info") else None


def _mlx_counters() -> tuple[int, int, int]:
    """Active and cached bytes of MLX's allocator, and the most that was active."""
    core = _loaded_mlx()
    return (0, 0, 0) if core is None else (core.get_active_memory(), core.get_cache_memory(), core.get_peak_memory())
