"""The machine as `mlxd doctor` sees it: system, processor, memory, swap, containers."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from mlxd.daemon.blas import SystemBlas
from mlxd.daemon.cli.doctor_checks import Check, Group
from mlxd.daemon.units import format_bytes
from mlxd.memory.footprint import Footprint
from mlxd.memory.outside import Strain, StrainLevel

GROUP = Group("machine")

# Below this share of the machine's memory, others leave too little for models.
_LITTLE = 0.1
# More in swap than this share of the machine's memory means that it is short of memory.
_MUCH_SWAPPED = 0.125
_SYSCTL_SECONDS = 5.0
_KIB = 1 << 10
_SYSCTL_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SYSTEMS = {"darwin": "macOS", "linux": "Linux"}


@dataclass(frozen=True, slots=True)
class Swap:
    """Swap space in bytes."""

    total: int
    used: int


def machine_checks(footprint: Footprint, swap: Swap | None, system: str, processor: str) -> list[Check]:
    """All about the machine. `swap` is None where that is not told; `system` is `sys.platform`."""
    return [
        _system(system, processor),
        GROUP.ok("cores", f"{_cores()} may be used", cores=_cores()),
        _memory(footprint),
        _pressure(footprint.strain),
        _swap(swap, footprint.machine_total),
        _container(footprint),
    ]


def read_swap(proc: Path = Path("/proc")) -> Swap | None:
    """The swap space of Linux or macOS, None where it is not told."""
    if sys.platform == "darwin":
        return parse_swap_usage(_sysctl("vm.swapusage"))
    try:
        return parse_meminfo((proc / "meminfo").read_text())
    except OSError:
        return None


def parse_meminfo(text: str) -> Swap | None:
    """The swap space in a /proc/meminfo."""
    sizes = {name: int(kib) * _KIB for name, kib in re.findall(r"^(Swap\w+): +(\d+) kB$", text, re.MULTILINE)}
    if "SwapTotal" not in sizes or "SwapFree" not in sizes:
        return None
    return Swap(sizes["SwapTotal"], sizes["SwapTotal"] - sizes["SwapFree"])


def parse_swap_usage(text: str) -> Swap | None:
    """The swap space in what macOS's `sysctl vm.swapusage` prints."""
    found = {
        name: int(float(number) * _SYSCTL_UNITS[unit])
        for name, number, unit in re.findall(r"(total|used) = ([0-9.]+)([KMG])", text)
    }
    return Swap(found["total"], found["used"]) if len(found) == 2 else None  # noqa: PLR2004 - both of them


def _sysctl(name: str) -> str:
    try:
        done = subprocess.run(
            ["/usr/sbin/sysctl", "-n", name], capture_output=True, text=True, timeout=_SYSCTL_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


def _system(system: str, processor: str) -> Check:
    name = _SYSTEMS.get(system, system)
    found = f"{name} {platform.release()} on {processor}"
    if system == "darwin" and processor != "arm64":
        advice = "MLX needs Apple silicon: on such a machine install a Python for arm64, not one under Rosetta"
        return GROUP.problem("system", found, advice)
    if system not in _SYSTEMS:
        return GROUP.warning("system", found, "MLX runs on macOS and Linux; use one of them")
    return GROUP.ok("system", found)


def _cores() -> int:
    return SystemBlas().cores() if sys.platform.startswith("linux") else os.cpu_count() or 1


def _memory(footprint: Footprint) -> Check:
    total, available = footprint.machine_total, footprint.machine_available
    found = f"{format_bytes(total)}, of which {format_bytes(available)} are available"
    details = {"total_bytes": total, "available_bytes": available}
    if available < total * _LITTLE:
        return GROUP.warning("memory", found, "close other programs, or lower memory.ceiling", **details)
    return GROUP.ok("memory", found, **details)


def _pressure(strain: Strain) -> Check:
    told = f" ({strain.told})" if strain.told else ""
    if strain.level is StrainLevel.NONE:
        return GROUP.ok("pressure", "the system does not complain", level=strain.level)
    found = f"the system says that memory is short: {strain.level}{told}"
    advice = "close other programs; until they are, models load and prompts start only while others leave room"
    return GROUP.warning("pressure", found, advice, level=strain.level)


def _swap(swap: Swap | None, machine_total: int) -> Check:
    if swap is None:
        return GROUP.ok("swap", "the system does not tell")
    if not swap.total:
        return GROUP.ok("swap", "there is none", total_bytes=0, used_bytes=0)
    found = f"{format_bytes(swap.used)} of {format_bytes(swap.total)} are used"
    details = {"total_bytes": swap.total, "used_bytes": swap.used}
    if swap.used > machine_total * _MUCH_SWAPPED:
        advice = "close other programs, or lower memory.ceiling: weights in swap are slow"
        return GROUP.warning("swap", found, advice, **details)
    return GROUP.ok("swap", found, **details)


def _container(footprint: Footprint) -> Check:
    limit, left = footprint.cgroup_limit, footprint.cgroup_available
    details = {"limit_bytes": limit, "available_bytes": left}
    if limit is None:
        return GROUP.ok("container", "no control group limits memory", **details)
    found = f"a control group limits memory to {format_bytes(limit)}"
    if left is None:
        return GROUP.ok("container", found, **details)
    found += f", of which {format_bytes(left)} are left"
    if left < limit * _LITTLE:
        return GROUP.warning("container", found, "raise the limit, or end what else runs in the group", **details)
    return GROUP.ok("container", found, **details)
