"""Chooses a fast BLAS on Linux, where MLX's CPU wheel carries the slow reference one."""

from __future__ import annotations

import ctypes.util
import importlib.metadata
import os
import re
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from mlxd.daemon.config_errors import ConfigError, Problem
from mlxd.daemon.settings import Settings
from mlxd.engines.blas_variables import CORES, LIBRARY

_PRELOAD = "LD_PRELOAD"
_THREADS = "OPENBLAS_NUM_THREADS"
_SEPARATORS = re.compile(r"[\s:]+")
# libraries with 64-bit integers ("64" in the name) have other symbols or another calling convention
_PATTERNS = (
    "usr/lib/*/openblas-pthread/libopenblas.so.0",
    "usr/lib64/openblas-pthreads/libopenblas.so.0",
    "usr/lib64/libopenblasp.so*",
    "usr/lib/*/libopenblas.so.0",
    "usr/lib/libopenblas.so*",
    "usr/lib64/libopenblas.so*",
    "usr/lib64/libopenblaso.so*",
)
_GPU_BACKENDS = ("mlx-cuda", "mlx-cuda-12", "mlx-cuda-13")
_ELF_HEADER = 20
_INSTALL = (
    "no OpenBLAS found: MLX computes with its slow reference BLAS; install libopenblas0-pthread (Debian, Ubuntu) "
    "or openblas (Fedora, Arch)"
)


@dataclass(frozen=True, slots=True)
class BlasPlan:
    """The library that MLX computes with, and the variables that say so to `preload_blas`, here and in children.

    `slow` when MLX will compute with the reference BLAS although nobody asked for it.
    """

    library: Path | None
    note: str
    variables: Mapping[str, str] = field(default_factory=dict)
    slow: bool = False

    def announce(self, environ: MutableMapping[str, str]) -> None:
        """Have this environment say so, whatever it said before."""
        for name in (LIBRARY, CORES):
            environ.pop(name, None)
        environ.update(self.variables)


class BlasFinder(Protocol):
    """What the machine has."""

    def has_gpu_backend(self) -> bool:
        """Whether MLX has a backend other than the CPU."""

    def library(self) -> Path | None:
        """The best OpenBLAS, as a path or as a bare name that the loader finds."""

    def is_loadable(self, library: Path) -> bool:
        """Whether this is a shared library for this machine."""

    def cores(self) -> int:
        """Cores that this process may use."""


def plan_blas(settings: Settings, environ: Mapping[str, str], platform: str, finder: BlasFinder) -> BlasPlan:
    """Decide what to load before MLX; `platform` is `sys.platform`. Raises ConfigError for a path that is no library.

    1. "off", not Linux, or a GPU backend: nothing.
    2. A configured path must be a library; "auto" takes what LD_PRELOAD has, or looks for one.
    3. Nothing found: go on as it is.
    """
    wanted = settings.engine.blas
    if wanted == "off":
        return BlasPlan(None, "engine.blas is off")
    if not platform.startswith("linux"):
        return BlasPlan(None, "MLX has a fast BLAS of its own on this system")
    library = _checked(wanted, finder) if isinstance(wanted, Path) else None
    if finder.has_gpu_backend():
        return BlasPlan(None, "MLX has a GPU backend, which needs no BLAS")
    library = library or _preloaded(environ) or finder.library()
    if library is None:
        return BlasPlan(None, _INSTALL, slow=True)
    variables = {LIBRARY: str(library)}
    if not environ.get(_THREADS):
        variables |= dict.fromkeys((_THREADS, CORES), str(finder.cores()))
    return BlasPlan(library, f"MLX computes with {library}", variables)


def _checked(library: Path, finder: BlasFinder) -> Path:
    if not finder.is_loadable(library):
        message = f'expected "auto", "off" or a shared library for this machine, got "{library}"'
        raise ConfigError(Problem(message, "engine.blas"))
    return library


def _preloaded(environ: Mapping[str, str]) -> Path | None:
    entries = _SEPARATORS.split(environ.get(_PRELOAD, ""))
    return next((Path(entry) for entry in entries if "openblas" in Path(entry).name), None)


@dataclass(frozen=True, slots=True)
class SystemBlas:
    """Looks at this machine; `root` is where its file system begins."""

    root: Path = Path("/")

    def has_gpu_backend(self) -> bool:
        """Whether a CUDA backend of MLX is installed; MLX itself is not imported."""
        return any(_is_installed(name) for name in _GPU_BACKENDS)

    def library(self) -> Path | None:
        """The first OpenBLAS in the usual folders, those with threads first; else what the loader knows."""
        for candidate in self._candidates():
            if self.is_loadable(candidate):
                return candidate
        known = ctypes.util.find_library("openblas")
        return Path(known) if known else None

    def is_loadable(self, library: Path) -> bool:
        """Whether the file has the word size and the processor of this Python."""
        if not library.is_file() or not os.access(library, os.R_OK):
            return False
        machine = _machine(library)
        return machine is not None and machine == _machine(Path(sys.executable))

    def cores(self) -> int:
        """Cores in this process's affinity mask, fewer if its control group has a smaller quota; at least 1."""
        return max(1, min([len(os.sched_getaffinity(0)), *self._quotas()]))

    def _quotas(self) -> Iterator[int]:
        membership = self.root / "proc/self/cgroup"
        own = re.search(r"^0::/(.*)$", membership.read_text(), re.MULTILINE) if membership.is_file() else None
        top = self.root / "sys/fs/cgroup"
        group = top / own[1] if own else top
        for folder in (group, *group.parents):
            limit = folder / "cpu.max"
            quota, _, period = limit.read_text().partition(" ") if limit.is_file() else ("max", "", "")
            if quota != "max":
                yield int(quota) // int(period)

    def _candidates(self) -> Iterator[Path]:
        for pattern in _PATTERNS:
            yield from sorted(self.root.glob(pattern))


def _machine(file: Path) -> bytes | None:
    """Word size, byte order and processor from an ELF header; None for any other file."""
    with file.open("rb") as stream:
        header = stream.read(_ELF_HEADER)
    return header[4:6] + header[18:20] if header.startswith(b"\x7fELF") else None


def _is_installed(distribution: str) -> bool:
    try:
        importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
