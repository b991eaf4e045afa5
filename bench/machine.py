"""The machine and the software that figures are of."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import sys
from pathlib import Path

import mlx.core as mx
import psutil


def machine() -> dict[str, str]:
    """What may matter for a figure, in words."""
    return {
        "processor": f"{_processor()}, {_cores()} cores",
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "device": _device(),
        "BLAS": _blas(),
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "packages": ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("mlxd", "mlx", "mlx-lm")),
    }


def described(facts: dict[str, str]) -> str:
    """The facts as a sentence."""
    return "; ".join(f"{name}: {fact}" for name, fact in facts.items())


def _cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE) if info.exists() else None
    return found[1] if found else platform.processor() or platform.machine()


def _device() -> str:
    return f"{mx.default_device()} {mx.device_info().get('device_name', '')}".strip()


def _blas() -> str:
    preloaded = [entry for entry in os.environ.get("LD_PRELOAD", "").split(":") if "openblas" in entry]
    if preloaded:
        return f"OpenBLAS, {Path(preloaded[0]).resolve().name}"
    return "MLX's own"
