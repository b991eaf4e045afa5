"""Imports what a daemon imports and tells how it went: run as a process of its own, which a broken library may end.

Each line on standard output is one report as JSON, and has all that the one before it has.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
from typing import BinaryIO

import msgspec
from msgspec import Struct, structs

from mlxd.daemon.probe_choice import make_probe
from mlxd.engines.blas_preload import preload_blas

_SIDE = 4


class LibraryReport(Struct, frozen=True):
    """How far it got. Bytes of footprint: `start_bytes` of a daemon without MLX, `base_bytes` with all it imports.

    `device` is where MLX computes, `computes` whether a small product came out right.
    `metal_bytes` is Metal's own limit.
    """

    start_bytes: int
    mlx: str | None = None
    device: str | None = None
    computes: bool | None = None
    mlx_lm: str | None = None
    base_bytes: int | None = None
    metal_bytes: int | None = None


def main() -> None:
    """Import in stages, with a report after each."""
    # what libraries print must not come between the reports
    reports = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    probe = make_probe(os.environ)
    importlib.import_module("mlxd.daemon.serve")
    report = _tell(reports, LibraryReport(probe.sample().bytes))
    preload_blas()
    mx = importlib.import_module("mlx.core")
    report = _tell(reports, structs.replace(report, mlx=mx.__version__, device=mx.default_device().type.name))
    square = mx.ones((_SIDE, _SIDE))
    report = _tell(reports, structs.replace(report, computes=(square @ square).sum().item() == _SIDE**3))
    importlib.import_module("mlxd.engines.mlx_backend")
    _tell(
        reports,
        structs.replace(
            report,
            mlx_lm=importlib.metadata.version("mlx-lm"),
            base_bytes=probe.sample().bytes,
            metal_bytes=probe.metal_limit(),
        ),
    )
    reports.close()
    sys.stderr.flush()
    # MLX's destructors may abort a process at its end
    os._exit(0)


def _tell(reports: BinaryIO, report: LibraryReport) -> LibraryReport:
    reports.write(msgspec.json.encode(report) + b"\n")
    return report


if __name__ == "__main__":
    main()
